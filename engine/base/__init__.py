"""Errors, files, records, routing, progress and validation: what every room of the engine stands on."""
