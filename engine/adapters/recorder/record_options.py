"""Options of ``tokenpaths.record``, checked before anything runs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torch import nn

from tokenpaths.engine.adapters.recorder.routers.router_plan import Read, RouterSettings
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_name


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _names_routers(value: Any) -> bool:
    if isinstance(value, (str, nn.Module)):
        return True
    if not isinstance(value, Collection):
        return isinstance(value, Iterable)  # what comes one by one would be used up by looking at it
    return all(isinstance(entry, (str, nn.Module)) for entry in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


_WHOLE, _TEXT = (_is_whole, "a whole number"), (_is_text, "text")
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("top_k", "num_experts", "every", "iteration"), _WHOLE),
    **dict.fromkeys(("run", "series", "model_name", "dataset", "split"), _TEXT),
    "runs_dir": (lambda value: isinstance(value, (str, os.PathLike)), "the path of a folder"),
    "routers": (_names_routers, 'a name such as "layers.*.gate", a module of the model, or a list of them'),
    "read": (callable, "a function of (module, inputs, output) that returns ids and weights"),
    "scale": (lambda value: isinstance(value, Real) and not isinstance(value, bool), "a number"),
    "token_texts": (_is_texts, "a mapping from vocabulary ids to texts, or a list of texts in their order"),
}
"""options that are checked: predicate and description of the accepted values, beside None where that is the default"""


@dataclass(frozen=True)
class RecordOptions:
    """The keywords of ``tokenpaths.record``, which documents them.

    Raises:
        UserError: an invalid option.
    """

    run: str | None = None
    runs_dir: Path | str | None = None
    routers: str | nn.Module | Sequence[str | nn.Module] | None = None
    read: Read | None = None
    top_k: int | None = None
    num_experts: int | None = None
    scale: float | int | None = None
    renormalise: bool = False
    every: int = 1
    series: str | None = None
    iteration: int | None = None
    model_name: str | None = None
    dataset: str = "recorded"
    split: str = ""
    token_texts: Mapping[Any, Any] | Sequence[Any] | None = None
    batch_first: bool = True
    overwrite: bool = False
    merge: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _KINDS and (value is not None or field.default is not None):
                fits, called = _KINDS[field.name]
                if not fits(value):
                    raise UserError(f"{field.name} is {repr(value)[:60]}, it should be {called}", field=field.name)
        for name, least in (("every", 1), ("top_k", 1), ("num_experts", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} is {value}, it should be at least {least}", field=name)
        if self.scale is not None and not self.scale > 0:
            raise UserError(f"scale is {self.scale}, it should be above 0", field="scale")
        if (self.series is None) != (self.iteration is None):
            raise UserError(
                "series and iteration belong together: the name of the training, and how many iterations it had",
                field="series",
            )
        if self.series is not None:
            check_name(self.series, "name of a series", field="series")
        if self.iteration is not None and self.iteration < 0:
            raise UserError(f"iteration is {self.iteration}, it should not be negative", field="iteration")

    @classmethod
    def of(cls, run: str | None, options: dict[str, Any]) -> RecordOptions:
        """The options by their names.

        Raises:
            TypeError: there is no option of that name; the message has those that there are.
        """
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            raise TypeError(f"tokenpaths.record has no option {unknown[0]!r}; its options are {', '.join(known)}")
        return cls(run=run, **options)

    @property
    def router_settings(self) -> RouterSettings:
        """The settings of the routers."""
        scale = None if self.scale is None else float(self.scale)
        return RouterSettings(
            self.routers is not None, self.read, self.top_k, self.num_experts, scale, self.renormalise
        )

    @property
    def named(self) -> list[str | nn.Module] | None:
        """The named routers as a list; None: search for them."""
        if self.routers is None:
            return None
        return [self.routers] if isinstance(self.routers, (str, nn.Module)) else list(self.routers)

    @property
    def texts(self) -> dict[int, str]:
        """Readable text of each vocabulary id."""
        texts = self.token_texts
        texts = texts if isinstance(texts, Mapping) else dict(enumerate(texts or ()))
        return {int(token_id): str(text) for token_id, text in texts.items()}


def signature_of_record() -> inspect.Signature:
    """The signature of ``record`` with a keyword for each option, for ``help`` and editors."""
    kind = inspect.Parameter
    model = kind("model", kind.POSITIONAL_OR_KEYWORD, annotation="nn.Module")
    options = [
        kind(
            field.name,
            kind.POSITIONAL_OR_KEYWORD if field.name == "run" else kind.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type,
        )
        for field in fields(RecordOptions)
    ]
    return inspect.Signature([model, *options], return_annotation="Recorder")
