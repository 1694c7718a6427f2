"""How a family offers edits: a control ``edits`` that refuses what the family has not, and says what it has."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, Field, field_validator

from engine.edits.values import KINDS, MOST_EDITS, Edit
from engine.errors import UserError
from engine.models.family import Controls


def _which(schema: dict[str, Any], controls: type[EditControls]) -> None:
    """The page reads from the schema which edits a family has, and why not the others."""
    schema["edits"], schema["no_edits"] = list(controls.EDITS), dict(controls.WHY_NOT)


class EditControls(Controls):
    """Controls of a family whose routes can be edited."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_which)

    FAMILY: ClassVar[str]
    EDITS: ClassVar[tuple[str, ...]]
    """the kinds of edit that mean something here"""
    WHY_NOT: ClassVar[dict[str, str]] = {}
    """a sentence for each of the others"""

    edits: tuple[Edit, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_EDITS,
        description="What is to be different in the routes, in any order: a list of edits",
    )

    @field_validator("edits", mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if given is not None and not isinstance(given, (list, tuple)):
            raise ValueError(f"edits is a {type(given).__name__}; give a list of edits, each with the name of one")
        if given is not None and not given:
            raise ValueError("the list of edits is empty, so nothing would be different; give one edit at least")
        for edit in given or ():
            name = edit.get("edit") if isinstance(edit, dict) else getattr(edit, "edit", None)
            if name not in cls.EDITS:
                why = f": {cls.WHY_NOT[name]}" if name in cls.WHY_NOT else ""
                called = f"has no edit {name!r}" if isinstance(name, str) else "takes edits that say which they are"
                raise ValueError(f"a {cls.FAMILY} model {called}{why}; it has: {', '.join(cls.EDITS)}")
        return given


class DNAControls(EditControls):
    """Every edit: a DNA decides for each token at each step, and any module can take any token."""

    FAMILY: ClassVar[str] = "dna"
    EDITS: ClassVar[tuple[str, ...]] = KINDS


def only_those(edits: tuple[Edit, ...] | None, what: str) -> None:
    """Refuse ``tokens`` and ``path`` where a decision is made for more than one token (``what``)."""
    for place, edit in enumerate(edits or ()):
        for name in ("tokens", "path"):
            if getattr(edit, name, None) is not None:
                raise UserError(
                    f"{name} cannot be chosen here: {what}; leave {name} out", field=f"edits.{place}.{name}"
                )
