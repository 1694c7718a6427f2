"""The modules view."""
