"""Modules view."""
