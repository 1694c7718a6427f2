"""Controls: changes to a trained model as plain values, and the edits that each family supports. No torch.

The control ``edits`` refuses kinds that the family does not support, and lists those that it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.validation import in_words
from tokenpaths.engine.families.edit_values import MOST_EDITS, Edit

Edits = Sequence[Edit] | None


class ControlsBase(BaseModel):
    """What may be changed of a trained model when it is run: None leaves a field as the model was trained.

    A family that has such controls gives a subclass whose fields carry bounds and descriptions: the
    page draws a slider for each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def given(self) -> dict[str, Any]:
        """The fields that were set."""
        return self.model_dump(exclude_none=True)


def _edit_problem(error: Any) -> str:
    """A sentence for an edit that cannot be read."""
    message = in_words(error)
    if len(error["loc"]) < 2:
        return message if error["type"] == "value_error" else f"edits: {message}"
    place, *rest = error["loc"][1:]
    where = ".".join(str(part) for part in rest[1:])
    if error["type"] == "value_error" and not where:
        return f"edit {place}: {message}"
    edit = f"edit {place}{' ' * bool(rest)}{rest[0] if rest else ''}"
    if error["type"] == "missing":  # its input is the edit that lacks it
        return f"{edit}: {where}: {message}"
    return f"{edit}: {where + ' ' * bool(where)}is {repr(error['input'])[:40]}: {message}"


def read_controls_of(controls: type[Any], values: dict[str, Any] | None, family: str) -> Any:
    """An instance of a class of controls from plain values.

    Raises:
        UserError: a control that it has not, or a value outside its bounds; ``field`` names it.
    """
    try:
        return controls(**(values or {}))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "controls"
        if first["loc"][:1] == ("edits",):
            place = [str(part) for at, part in enumerate(first["loc"]) if at != 2]  # without the kind of edit
            raise UserError(_edit_problem(first), field=".".join(place)) from None
        if first["type"] == "extra_forbidden":
            # What all families share stands last.
            names = ", ".join(sorted(controls.model_fields, key=lambda field: field == "edits")) or "none"
            raise UserError(f"a {family} model has no control {name!r}; it has: {names}", field=name) from None
        raise UserError(f"control {name} is {str(first['input'])[:40]}: {first['msg']}", field=name) from None


def _which(schema: dict[str, Any], controls: type[EditControls]) -> None:
    """The page reads from the schema which edits a family has, and why not the others."""
    schema["edits"], schema["no_edits"] = list(controls.EDITS), dict(controls.WHY_NOT)


class EditControls(ControlsBase):
    """Controls of a family whose routes can be edited."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_which)

    FAMILY: ClassVar[str]
    CONFIG: ClassVar[type[BaseModel]]
    """of a checkpoint's ``config.json``; where a plugin leaves it out, its model is imported to read one"""
    MODEL: ClassVar[str]
    """``module:Class`` of the model, imported on first use"""
    TRAININGS: ClassVar[str] = ""
    """``module:function`` that lists the trainings (``engine.train.catalogue.Training``); empty: none"""
    CARD: ClassVar[str] = ""
    """``module:function`` that writes the card of a trained checkpoint"""
    DREAMS: ClassVar[tuple[str, ...]] = ()
    """what can be dreamed of: kinds of target of a dream request"""
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

    @classmethod
    def check_edits(cls, config: dict[str, Any], edits: Edits) -> None:
        """Refuse edits that do not fit the model with this configuration; UserError with ``field``."""
        if edits is not None:  # a family without EDITS never gets here
            raise NotImplementedError

    def check_fit(self, config: dict[str, Any]) -> None:
        """Refuse what does not fit the model with this configuration, before any weights are loaded; UserError with
        ``field``. A family whose other controls depend on the model has its own."""
        self.check_edits(config, self.edits)

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
                raise ValueError(f"a {cls.FAMILY} model {called}{why}; it has: {', '.join(cls.EDITS) or 'none'}")
        return given


def check_index(field: str, index: int | None, size: int, what: str = "") -> None:
    """Refuse a place (``what``: of what, where ``field`` does not say) that is not one of ``size``."""
    if index is not None and not 0 <= index < size:
        raise UserError(f"{field}{': ' * bool(what)}{what} {index} is not one of 0 to {size - 1}", field=field)


def check_table(
    field: str, rows: Sequence[Sequence[Sequence[float]]], axes: Sequence[str], sizes: Sequence[int] | None = None
) -> None:
    """Refuse a table of three ``axes`` that is ragged, of other ``sizes`` than these, or not between 0 and 1."""
    one, two, three = axes
    seconds, thirds = {len(part) for part in rows}, {len(row) for part in rows for row in part}
    if len(seconds) > 1 or len(thirds) > 1:
        raise UserError(
            f"the {field} are ragged: every {one} has as many {two}s, every {two} as many {three}s", field=field
        )
    shape = (len(rows), *seconds, *thirds)
    if sizes is not None and shape != tuple(sizes):
        raise UserError(
            f"the {field} have shape {shape}; this model has ({one}s, {two}s, {three}s) = {tuple(sizes)}", field=field
        )
    if not all(0 <= value <= 1 for part in rows for row in part for value in row):  # NaN is neither
        raise UserError(f"the {field} hold values that are not between 0 and 1", field=field)


def only_those(edits: Sequence[Edit] | None, what: str) -> None:
    """Refuse ``tokens`` and ``path`` where a decision is made for more than one token (``what``)."""
    for place, edit in enumerate(edits or ()):
        for name in ("tokens", "path"):
            if getattr(edit, name, None) is not None:
                raise UserError(
                    f"{name} cannot be chosen here: {what}; leave {name} out", field=f"edits.{place}.{name}"
                )
