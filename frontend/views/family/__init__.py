"""The family view."""
