"""Answers about several runs: comparisons, effects of edits, saturation over a training."""
