"""Hugging Face mixtures of experts, read at their gates."""
