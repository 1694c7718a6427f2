"""Readers of single tables of a run file, below the topics."""
