"""Layers between the product of Q and K and the softmax, except masks.

In: a value on the way up from a softmax. Out: the step that made it (a factor, a cap, a cast, moved axes, a function of the score)
and the value underneath.
"""
