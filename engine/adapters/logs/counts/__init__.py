"""Readers of sums over tokens, of which the load can be told and no path."""
