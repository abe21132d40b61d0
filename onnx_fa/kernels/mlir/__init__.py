"""MLIR text.

In: names, vectors and score expressions. Out: text of MLIR, with SSA names that do not clash.
"""
