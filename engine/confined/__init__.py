"""Confined child processes for whatever reads the bytes of strangers: limits, a system-call filter, plain messages."""
