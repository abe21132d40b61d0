"""From a model with sites to a module, by the stock IREE tools.

In: a rewritten model and its kernels. Out: MLIR that `iree-compile` takes, a .vmfb, what the compiler made of each site, and
results of runs.
"""
