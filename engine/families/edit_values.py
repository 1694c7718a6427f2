"""Route edits as immutable values, serialised as plain JSON for the API, the page, jobs and notebooks.

    {"edit": "ban", "modules": [3], "step": 1}

Steps count from 0; a token is a position in its sample. The edits that a family supports, and why not the others,
are listed with its controls.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from tokenpaths.engine.base.errors import UserError

MOST_EDITS = 256
Ribbon = tuple[tuple[NonNegativeInt, ...], ...]
"""module ids by step and slot"""


class _Edit(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _ForSome(_Edit):
    """An edit that may hold for some tokens only; the others route freely."""

    tokens: tuple[NonNegativeInt, ...] | None = Field(
        default=None, min_length=1, description="positions in the sample; unset: every token"
    )
    path: Ribbon | None = Field(
        default=None, min_length=1, description="only tokens whose unedited ribbon is this one, by step and slot"
    )

    @model_validator(mode="after")
    def _one_choice(self) -> _ForSome:
        if self.tokens is not None and self.path is not None:
            raise ValueError("tokens and path both say which tokens are meant; give one of the two")
        return self

    @property
    def for_all(self) -> bool:
        """Whether it holds for every token."""
        return self.tokens is None and self.path is None


class Ban(_ForSome):
    """Modules that are never chosen: their probability is 0, the others share it as the router says."""

    edit: Literal["ban"] = "ban"
    modules: tuple[NonNegativeInt, ...] = Field(min_length=1, description="modules that may not be chosen")
    step: NonNegativeInt | None = Field(default=None, description="at this step; unset: at every step")


class Force(_ForSome):
    """A module that tokens must visit: it takes the place, and the weight, of their first choice."""

    edit: Literal["force"] = "force"
    module: NonNegativeInt
    step: NonNegativeInt | None = Field(default=None, description="at this step; unset: at every step")


class Swap(_Edit):
    """The route of another sample: token t goes where the other sample's token t went."""

    edit: Literal["swap"] = "swap"
    ribbons: tuple[Ribbon, ...] = Field(min_length=1, description="module ids by token, step and slot")


class Freeze(_Edit):
    """A router that decides as in the unedited run, whatever the other edits made of the states."""

    edit: Literal["freeze"] = "freeze"
    step: NonNegativeInt | None = Field(
        default=None, description="this step's router; unset: every router that no other edit changes"
    )


class Shuffle(_Edit):
    """Decisions that went to the wrong tokens: those of a step are dealt out anew among a sample's tokens."""

    edit: Literal["shuffle"] = "shuffle"
    step: NonNegativeInt | None = Field(default=None, description="at this step; unset: at every step")
    seed: NonNegativeInt = 0


class TopK(_Edit):
    """Another number of modules for each token, at every step."""

    edit: Literal["top_k"] = "top_k"
    k: int = Field(ge=1, description="modules that a token visits at a step")


class Bias(_Edit):
    """A push of the choice: added to the probability when the largest are picked, never to the weight."""

    edit: Literal["bias"] = "bias"
    modules: tuple[NonNegativeInt, ...] = Field(min_length=1)
    value: float = Field(ge=-1000, le=1000, allow_inf_nan=False, description="added to the score of these modules")
    step: NonNegativeInt | None = Field(default=None, description="at this step; unset: at every step")


Edit = Annotated[Ban | Force | Swap | Freeze | Shuffle | TopK | Bias, Field(discriminator="edit")]
KINDS = ("ban", "force", "swap", "freeze", "shuffle", "top_k", "bias")


def check_length(edits: tuple[Edit, ...] | None, num_tokens: int, context: int) -> None:
    """Refuse tokens chosen by position that a text has not, or where it is cut into windows, each with positions of
    its own.

    Raises:
        UserError: the text is longer than ``context``, or too short.
    """
    for place, edit in enumerate(edits or ()):
        tokens = getattr(edit, "tokens", None)
        if num_tokens > context and (isinstance(edit, Swap) or tokens is not None):
            raise UserError(
                f"{written(edit)}: the text has {num_tokens} tokens and is read in windows of {context}, so positions "
                f"mean nothing in it; give a text of at most {context} tokens, or choose the tokens by path",
                field=f"edits.{place}.{'ribbons' if isinstance(edit, Swap) else 'tokens'}",
            )
        if isinstance(edit, Ban | Force) and tokens is not None and (last := max(tokens)) >= num_tokens:
            raise UserError(no_such_token(edit, last, num_tokens), field=f"edits.{place}.tokens")


def no_such_token(edit: Ban | Force, token: int, num_tokens: int) -> str:
    """That a sample is too short for an edit of some of its tokens."""
    done = "forced" if isinstance(edit, Force) else "banned from a module"
    there = f"{num_tokens} tokens, 0 to {num_tokens - 1}" if num_tokens != 1 else "one token, 0"
    return f"token {token} cannot be {done}: this sample has {there}"


def written(edit: Any) -> str:
    """An edit in a few words: “ban module 3 at step 1”."""
    where = " at every step" if getattr(edit, "step", None) is None else f" at step {edit.step}"
    match edit:
        case Ban(modules=modules):
            return f"ban {_modules(modules)}{'' if edit.for_all else ' for ' + _who(edit)}{where}"
        case Force(module=module):
            return f"force {_who(edit)} to module {module}{where}"
        case Swap():
            return "the route of another sample"
        case Freeze(step=step):
            return "freeze every other router" if step is None else f"freeze the router of step {step}"
        case Shuffle():
            return f"shuffle the decisions{where}"
        case TopK(k=k):
            return f"top-{k}"
        case Bias(modules=modules, value=value):
            return f"bias {value:+g} for {_modules(modules)}{where}"
    raise TypeError(f"{type(edit).__name__} is no edit")


def _who(edit: _ForSome) -> str:
    if edit.path is not None:
        return "the tokens of a path"
    return "every token" if edit.tokens is None else f"{len(edit.tokens)} token{'s' * (len(edit.tokens) != 1)}"


def _modules(modules: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, modules[:6])) + (f" and {len(modules) - 6} more" if len(modules) > 6 else "")
    return f"module{'s' * (len(modules) > 1)} {shown}"
