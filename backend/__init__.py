"""The REST API, the engine worker and the command line of Tokenpaths."""

__version__ = "0.2.0"
"""version of the package; part of every ETag, so that an upgrade never serves an old schema"""
