"""Proof by comparison.

In: a model. Out: the original, the rewritten and the compiled model against each other and against float64, on random and on
adversarial inputs.
"""
