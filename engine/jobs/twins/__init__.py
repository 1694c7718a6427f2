"""Untrained twins, traced when nothing else is to be done."""
