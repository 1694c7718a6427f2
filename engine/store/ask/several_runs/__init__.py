"""Answers about several runs: comparisons, a sample in a reference run, effects of edits, saturation of a training."""

MOST_RUNS = 32
"""side by side in one answer"""
