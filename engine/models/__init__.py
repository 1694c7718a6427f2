"""Routed models: one file or folder a family, their common interface, checkpoints, and the module bank."""
