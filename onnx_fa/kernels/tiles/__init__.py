"""Measured tiles.

In: a target and an `AttentionSpec`. Out: the tiles that `onnx-fa tune` measured fastest for its family, from
`data/<target>.json`.
"""
