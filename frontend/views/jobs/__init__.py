"""Jobs view."""
