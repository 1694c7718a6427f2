"""Schemas of all answers, one file a topic, as in ``routes``."""
