"""Recorder for any PyTorch model: finds its routers and records their decisions while the model runs."""
