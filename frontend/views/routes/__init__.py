"""Flow view."""
