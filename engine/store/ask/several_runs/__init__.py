"""Answers about several runs: comparisons, effects of edits, saturation over a training."""

MOST_RUNS = 32
"""side by side in one answer"""
