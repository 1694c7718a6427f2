"""Paths view."""
