"""The home view."""
