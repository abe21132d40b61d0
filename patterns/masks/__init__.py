"""Masks and biases, read backwards from the score to what decides about a position.

In: a tensor that is added to the scores or chooses between them and a fill. Out: the terms that say the same (Causal,
SlidingWindow, BoolMask, AddMask, Elementwise), and of tensors only what a term still has to read.
"""
