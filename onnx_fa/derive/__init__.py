"""Finds by equality saturation how a reduction program over keys runs in as few passes as possible.

A program (program.py) is rewritten by rules that know nothing of attention (rules.py) in an e-graph (egraph.py); a cost that counts
passes first picks the best of all equal programs (cost.py), and what that program carries from block to block is closed into a
recurrence (search.py, recurrence.py). `chain.py` says by which rules one gets there; `check.py` computes any program in float64.
"""
