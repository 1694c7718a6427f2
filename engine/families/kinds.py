"""What a module of the bank is."""

from __future__ import annotations

from typing import Literal

Kind = Literal["transformer", "attention", "mlp", "identity"]
KINDS: tuple[Kind, ...] = ("transformer", "attention", "mlp", "identity")
