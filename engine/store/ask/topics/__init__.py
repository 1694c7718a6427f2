"""Answers about one run, a module a topic: plain functions of an open ``RunFile``."""
