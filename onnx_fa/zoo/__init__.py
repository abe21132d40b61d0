"""The zoo: a list of models, what is expected of each, and the run that holds them to it (`onnx-fa zoo`)."""
