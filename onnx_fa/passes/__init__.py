"""How often a graph walks over all its keys.

In: a model, and the tensors that hold keys. Out: the passes, with what starts each of them.
"""
