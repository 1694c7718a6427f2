"""Syntax of route edits in the URL, ``controls=ban:1.5,force:2.7.27+28``, and conversion to and from the API. Pure.

ban:1.5        module 5 at step 1           ban:all.5        at every step
ban:1.5.27+28  for tokens 27 and 28 only; path27 and from4-2 as below
force:1.5      every token to module 5      force:1.5.27+28  tokens 27 and 28
force:1.5.path27   the tokens of the sample on token 27's path
force:1.5.from4-2  the tokens that went from module 4 at step 0 to module 2
bias:1.5.0.2   0.2 added to its score       top_k:2          freeze:rest   freeze:3
shuffle:all.0  decisions permuted, seed 0   swap:12          the route of sample 12
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

EVERY = "all"
MOST_EDITS = 16
"""of an address; one more takes the place of the first"""
KINDS = {
    "ban": "Ban a module",
    "force": "Force a module",
    "swap": "Take another’s route",
    "freeze": "Freeze routers",
    "shuffle": "Shuffle decisions",
    "top_k": "Change top-k",
    "bias": "Bias a module",
}
WHAT = {
    "ban": "It may not be chosen; tokens go to the module that the router likes next.",
    "force": "It takes the place, and the weight, of the tokens’ first choice.",
    "swap": "Each token goes where the same token of the other sample went. Both need as many tokens.",
    "freeze": "Routers decide as without edits, though states have changed; what is left is the edit’s own effect.",
    "shuffle": "The decisions of a step are dealt out anew among the tokens, so load stays and sense goes.",
    "top_k": "Each token visits so many modules at every step.",
    "bias": "Added to the module’s score when the best are picked; its weight stays the router’s.",
}

NOT_HERE = {
    "raytracing": {
        "top_k": "every block above the threshold fires; the Lights view shows what is said at each threshold",
        "bias": "there is no choice that could be pushed; the Lights view shows what is said at each threshold",
    },
    "directional": {
        "swap": "a route is a gate for each direction; the Gates view runs a text with the gates of another one",
        "bias": "gates are set by hand in the Gates view",
    },
    "hmodel": {
        "swap": "a route is a matrix of weights here, and taking that of another sample is for the API alone",
        "freeze": "a route is a matrix of weights here, and holding it fixed is for the API alone",
        "top_k": "how many connections are kept is chosen in the Connections view",
    },
}
"""family → edit → why the page does not offer it, and the view that has what comes near. The API's own reasons, which
stand for other edits, name fields of a request here, and no form of the page has those."""


def why_not(family: str, reasons: Mapping[str, str]) -> dict[str, str]:
    """Why a model has not each of the edits that it has not, in words of the page; ``reasons`` are the API's."""
    return {edit: NOT_HERE.get(family, {}).get(edit, reason) for edit, reason in reasons.items()}


def read_edits(
    given: Sequence[str],
    sample: Mapping[str, Any],
    other: Callable[[int], Mapping[str, Any] | None],
    controls: Collection[str] = (),
) -> tuple[list[dict[str, Any]], list[str]]:
    """Parse edits into the API's form.

    Args:
        sample: The unedited sample; its tokens determine who is on a path.
        other: Returns a sample by number.
        controls: Names of the model's other controls, which the Family view changes.

    Returns:
        The edits, and a sentence for each invalid part.
    """
    edits, problems = [], []
    for text in given:
        kind, _, value = text.partition(":")
        if kind not in KINDS:
            problems.append(
                f"The address also says {text[:60]!r}: that is changed in the Family view, here only edits count."
                if kind in controls
                else f"The address says {text[:60]!r}, which is no edit; it was left out. There are {', '.join(KINDS)}."
            )
            continue
        try:
            edit = _READERS[kind](value, sample, other)
        except (ValueError, KeyError, IndexError):
            edit = None
        if edit is None:
            problems.append(f"The address says {text[:60]!r}, which is no edit of this sample; it was left out.")
        else:
            edits.append({"edit": kind, **edit})
    return edits, problems


def _place(text: str) -> dict[str, int]:
    """``{"step": …}``, or an empty dict for every step."""
    return {} if text == EVERY else {"step": int(text)}


def _ban(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any] | None:
    step, module, *rest = value.split(".")
    return _for_some({"modules": [int(module)], **_place(step)}, step, rest, sample)


def _force(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any] | None:
    step, module, *rest = value.split(".")
    return _for_some({"module": int(module), **_place(step)}, step, rest, sample)


def _for_some(edit: dict[str, Any], step: str, rest: Sequence[str], sample: Mapping[str, Any]) -> dict[str, Any] | None:
    """The edit restricted to the tokens that ``rest`` selects; None if it selects none of this sample."""
    if not rest:
        return edit
    if rest[0].startswith("path"):
        tokens = on_path_of(sample, int(rest[0].removeprefix("path")))
    elif rest[0].startswith("from"):
        source, target = rest[0].removeprefix("from").split("-")
        tokens = on_link(sample, (int(step) - 1, int(source), int(target)))
    else:
        tokens = [int(token) for token in rest[0].split("+")]
    return edit | {"tokens": tokens} if tokens else None


def on_path_of(sample: Mapping[str, Any], token: int) -> list[int]:
    """Tokens of a sample that visit the same modules as ``token``, ignoring the order of slots."""

    def path(one: Mapping[str, Any]) -> list[list[int]]:
        return [sorted(modules) for modules in one["ribbon"]]

    own_path = next((path(one) for one in sample["tokens"] if one["token"] == token), None)
    return [one["token"] for one in sample["tokens"] if path(one) == own_path]


Link = tuple[int, int, int]
"""step, source, target: from (step, source) to (step + 1, target)"""


def link_of(through: Sequence[str]) -> Link | None:
    """The link between two modules at consecutive steps; None for anything else."""
    if len(through) != 2:
        return None
    (step, source), (after, target) = sorted(tuple(map(int, node.split("."))) for node in through)
    return (step, source, target) if after == step + 1 else None


def at_node(token: Mapping[str, Any], step: int, module: int) -> bool:
    """Whether this token visits a module at a step."""
    return 0 <= step < len(token["ribbon"]) and module in token["ribbon"][step]


def takes(token: Mapping[str, Any], link: Link) -> bool:
    """Whether this token takes a link."""
    step, source, target = link
    return at_node(token, step, source) and at_node(token, step + 1, target)


def on_link(sample: Mapping[str, Any], link: Link) -> list[int]:
    """The tokens of a sample that take a link."""
    return [token["token"] for token in sample["tokens"] if takes(token, link)]


def _swap(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any] | None:
    donor = other(int(value))
    return None if donor is None else {"ribbons": [token["ribbon"] for token in donor["tokens"]]}


def _freeze(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any]:
    return {} if value == "rest" else {"step": int(value)}


def _shuffle(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any]:
    step, seed = value.split(".")
    return {"seed": int(seed), **_place(step)}


def _top_k(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any]:
    return {"k": int(value)}


def _bias(value: str, sample: Mapping[str, Any], other: Any) -> dict[str, Any]:
    step, module, amount = value.split(".", 2)
    return {"modules": [int(module)], "value": float(amount), **_place(step)}


_READERS = {
    "ban": _ban,
    "force": _force,
    "swap": _swap,
    "freeze": _freeze,
    "shuffle": _shuffle,
    "top_k": _top_k,
    "bias": _bias,
}


def in_address(edit: Mapping[str, Any]) -> list[str] | None:
    """An edit of the API in the URL's syntax; None if the syntax cannot express it.

    >>> in_address({"edit": "ban", "modules": [3, 5], "step": 1}), in_address({"edit": "swap", "ribbons": []})
    (['ban:1.3', 'ban:1.5'], None)
    """
    kind, step = edit.get("edit"), EVERY if edit.get("step") is None else edit["step"]
    who = "" if edit.get("tokens") is None else "." + "+".join(map(str, edit["tokens"]))
    if edit.get("path") is not None or len(who) > 150:
        return None
    if kind == "ban":
        return [f"ban:{step}.{module}{who}" for module in edit["modules"]]
    if kind == "force":
        return [f"force:{step}.{edit['module']}{who}"]
    if kind == "freeze":
        return ["freeze:rest" if step == EVERY else f"freeze:{step}"]
    if kind == "shuffle":
        return [f"shuffle:{step}.{edit.get('seed', 0)}"]
    if kind == "top_k":
        return [f"top_k:{edit['k']}"]
    if kind == "bias":
        return [f"bias:{step}.{module}.{edit['value']:g}" for module in edit["modules"]]
    return None


def said(text: str, name: Callable[[int | None, int], str]) -> str:
    """Description of one edit from the URL; ``name`` names a module at a step (None: at every step)."""
    kind, _, value = text.partition(":")
    step, _, rest = value.partition(".")
    where = "at every step" if step == EVERY else f"at step {step}"
    at = int(step) if step.isdigit() else None
    if kind == "ban":
        module, _, who = rest.partition(".")
        return f"{name(at, int(module))} banned {'for ' + _who(who) + ' ' if who else ''}{where}"
    if kind == "force":
        module, _, who = rest.partition(".")
        return f"{_who(who)} forced to {name(at, int(module))} {where}"
    if kind == "bias":
        module, _, amount = rest.partition(".")
        return f"{name(at, int(module))} pushed by {amount} {where}"
    return {
        "swap": f"the route of sample {value}",
        "freeze": "all other routers frozen" if value == "rest" else f"the router of step {value} frozen",
        "shuffle": f"decisions shuffled {where}",
        "top_k": f"top-{value} at every step",
    }[kind]


def _who(who: str) -> str:
    """Description of the tokens of a ban or force."""
    if who.startswith("path"):
        return f"the tokens on the path of token {who.removeprefix('path')}"
    if who.startswith("from"):
        return "the tokens from module {} to module {}".format(*who.removeprefix("from").split("-"))
    return f"token{'s' * ('+' in who)} {who.replace('+', ', ')}" if who else "every token"


def added(given: Sequence[str], text: str) -> tuple[str, ...]:
    """The URL's edits plus one more, without those that conflict with it: another top-k, another route."""
    kind = text.partition(":")[0]
    alone = {"top_k", "swap"} if kind in ("top_k", "swap") else set()
    rest = [one for one in given if one != text and one.partition(":")[0] not in alone & {kind}]
    return (*rest, text)[-MOST_EDITS:]
