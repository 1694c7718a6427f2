"""The paths view."""
