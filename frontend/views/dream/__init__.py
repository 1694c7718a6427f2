"""Dream view."""
