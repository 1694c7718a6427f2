"""Runs on disk: write one (``RunWriter``), open one and ask it (``Run``), list them (``list_runs``)."""
