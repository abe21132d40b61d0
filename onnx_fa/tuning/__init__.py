"""The search for tiles.

In: a target and a list of cases. Out: the database of measured tiles (`kernels/tiles`).
"""
