"""Readers of saved arrays and tensors: numpy, safetensors, PyTorch and pickles without the running of code."""
