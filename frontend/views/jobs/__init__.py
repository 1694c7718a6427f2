"""The jobs view."""
