"""Triton kernels of the routed step on a GPU; imported only where ``trial.kernels_hold``."""
