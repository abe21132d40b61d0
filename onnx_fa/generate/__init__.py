"""Text generation with a decoder that was exported with its caches: a prompt, then token after token, greedily.

In: an ONNX file, or a folder as onnxruntime-genai or optimum write it. Out: two compiled modules (for prompts, and for one token),
whose caches stay on the device and grow in place where the graph allows, and the tokens, beside those of onnxruntime.
"""
