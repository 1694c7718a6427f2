"""The flow view."""
