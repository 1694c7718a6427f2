"""The sample view."""
