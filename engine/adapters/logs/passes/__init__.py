"""Readers of forward passes that are written layer by layer: llama.cpp and Megatron-LM."""
