"""The softmax itself, in any spelling, and what is done to its probabilities.

In: a node. Out: an anchor (scores, sink, axis and where the probabilities are), what happens to the probabilities behind it, or
the reason why this is no softmax over keys.
"""
