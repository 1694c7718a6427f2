"""Readers of tables with a row a token or a decision."""
