"""Flows and usage of a run that is written."""
