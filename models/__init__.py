"""The PyTorch attention zoo: small seeded models (`build`) and their ONNX exports (`export`). Needs the `torch` extra."""
