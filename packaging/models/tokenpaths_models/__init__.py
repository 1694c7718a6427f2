"""Checkpoints that the wheel of Tokenpaths is too small for; found by the entry point ``tokenpaths.models``."""

from pathlib import Path

MODELS_DIR = Path(__file__).parent / "models"
