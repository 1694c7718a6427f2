"""Routing logs of other programs as runs: one file an engine."""
