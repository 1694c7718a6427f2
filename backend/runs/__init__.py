"""Runs of the data folder: registry, responses, run files of unknown origin."""
