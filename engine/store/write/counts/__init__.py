"""Runs made of counts of tokens by expert, without tokens."""
