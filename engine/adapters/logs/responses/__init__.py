"""Readers of responses of serving engines: what a file of them looks like, and where each engine puts its rows."""
