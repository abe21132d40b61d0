"""What an attention computes.

In: nothing of the project. Out: `AttentionSpec` and its parts, their meaning in float64 (`reference`), what accuracy to expect,
words for people, and the table of cases that tests, tuner and benchmarks share.
"""
