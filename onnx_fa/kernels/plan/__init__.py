"""What a kernel does, before any text.

In: an `AttentionSpec`. Out: the steps on a score, the blocks of keys that can be skipped, the bounds that prove it, heads folded
into queries. No target is known here.
"""
