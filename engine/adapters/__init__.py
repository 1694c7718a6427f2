"""Other people's routed models: Hugging Face gates, a recorder for any PyTorch model, importers of logs.

All of them end in the same two things that the engine's own models end in: a ``RunInfo`` with its modules, and
``TraceBatch`` after ``TraceBatch`` for ``RunWriter``. What they share is in ``expert_runs.py``.
"""
