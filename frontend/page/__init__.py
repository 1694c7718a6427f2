"""Shared by all views: address, selection, widgets, downloads, tables, filter chips."""
