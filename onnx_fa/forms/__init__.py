"""What is written back as ONNX.

In: a model and the matches in it. Out: the model with every attention in the chosen form (decomposed, attention, blocked), and a
report of what was found and what was left alone.
"""
