"""What is rewritten before matching.

In: a model. Out: the same model, equal in every result, with attentions that a function, a difference of softmaxes or a paged
pool had hidden now in plain sight.
"""
