"""The state of the page as a value, parsed from and written to the query string of the URL; ``address`` binds it.

Every field that is not at its default is in the URL under its own name, so a link reproduces the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

PLACES = {"home": "Home", "explore": "Explore", "compare": "Compare", "experiment": "Experiment"}
VIEWS = {
    "home": "Home",
    "routes": "Routes",
    "paths": "Paths",
    "samples": "Samples",
    "modules": "Modules",
    "work": "Work",
    "family": "Family",
    "compare": "Compare",
    "change": "Change a route",
    "importance": "Importance",
    "dream": "Dream",
    "jobs": "Jobs",
}
EXPLORE = ("routes", "paths", "samples", "modules", "work", "family")
EXPERIMENT = ("change", "importance", "dream")
PLACE_OF = {
    "home": "home",
    "compare": "compare",
    **dict.fromkeys(EXPLORE, "explore"),
    **dict.fromkeys(EXPERIMENT, "experiment"),
}
"""view → place; *Jobs* belongs to none: a badge opens it"""
EARLIER_VIEWS = {
    "runs": "home",
    "try": "home",
    "flow": "routes",
    "sample": "samples",
    "map": "samples",
    "compute": "work",
    "detour": "change",
}
"""names of views in addresses of the first design → where the same thing is now"""
MEASURES = ("compute", "reuse", "loss", "gate_entropy")
EFFECTS = ("loss_change", "kl", "paths_changed_after")
PARTS = {"numbers": "Numbers", "samples": "Samples", "tokens": "Tokens", "routes": "Routes", "training": "Training"}
"""parts of Compare: address → display text"""
MOST_COMPARED = 32
ORDERS = ("rank", "compute", "reuse")
SAMPLE_ORDERS = ("sample", "loss", "confidence", "compute", "reuse", "drawn")
MOST_MORE = 3
"""times that “Show more” adds as many samples as there were at first"""
WORD_KINDS = {
    "punctuation": "punctuation",
    "sentence_end": "ends of sentences",
    "number": "numbers",
    "capitalised": "capitalised words",
    "function_word": "function words (English)",
    "ends_in_s": "words that end in -s (most plurals)",
    "whitespace": "blanks and line breaks",
}
PATCH_KINDS = {
    "edge": "busy patches (the tenth with the highest contrast)",
    "flat": "flat patches (the tenth with the lowest contrast)",
    "border": "patches at the border",
    "centre": "patches in the middle",
}
KINDS = {**WORD_KINDS, **PATCH_KINDS}
"""kinds of words and patches: API name → display text"""
MOST_WRITTEN = {"label": 500, "other": 500, "q": 200, "find": 200}
"""maximum lengths of text fields in the URL, in characters"""
MOST_PATHS = 32
"""paths that can be selected at once"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NODE = re.compile(r"\d{1,4}\.\d{1,6}")
_INSPECTED = re.compile(r"module:\d{1,4}\.\d{1,6}|path:[1-9]\d{0,14}|token:\d{1,15}\.\d{1,15}|sample:\d{1,15}")
_GATE = re.compile(r"\d{1,4}\.\d{1,4}\.\d{1,4}")
_CHANGE = re.compile(r"[a-z_]{1,40}:[A-Za-z0-9_.+-]{1,200}")


@dataclass(frozen=True)
class Selection:
    """One state of the page; the defaults are the state of a URL without a query."""

    view: str = "home"
    run: str | None = None
    label: str | None = None
    labels: str | None = None
    """``merged``: labels that look alike count as one"""
    steps: tuple[int, int] | None = None
    """half-open like the API: (0, 5) is the steps 0 to 4"""
    through: tuple[str, ...] = ()
    """``step.module`` that tokens must all visit"""
    paths: tuple[int, ...] = ()
    """selected path ranks"""
    sample: int | None = None
    token: int | None = None
    tint: int | None = None
    """Samples: tint by the module of this step; None: by path CDF"""
    opacity: int = 65
    """Samples: opacity of the tint, per cent"""
    hide: float | None = None
    """Routes: hide links below this share of tokens, per cent; None: automatic if there are too many"""
    drawn: str | None = None
    """Routes: ``ribbons`` or a heat map (``map``); None: a map where a token takes many modules at a step"""
    order: str = "rank"
    """Paths: sort order of the table"""
    sort: str = "sample"
    """Samples: order of the wall"""
    more: int = 0
    """Samples: how often more were shown"""
    measure: str = "compute"
    per: str = "sample"
    bin: int | None = None
    """Work: the selected bin"""
    first: int = 0
    """Samples: first row of the token flow"""
    plane: str | None = None
    """Samples: ``pca`` where the map by t-SNE that was made is not wanted; None: that map where there is one"""
    seed: int = 0
    """Paths: seed of the sampled examples"""
    q: str | None = None
    """Home: words of runs; Samples: words of texts"""
    find: str | None = None
    """Paths: a word or pattern whose tokens are searched"""
    kind: str | None = None
    """Paths: tokens of this kind of word or patch"""
    reading: str = "word"
    """Paths: match ``find`` and ``kind`` against whole words, or against a token's own characters"""
    ranks: tuple[int, int] | None = None
    """Paths: tokens on paths in this range of ranks, inclusive"""
    compute: tuple[float, float] | None = None
    """Paths: tokens with a compute in this range"""
    reuse: tuple[float, float] | None = None
    model: str | None = None
    """Home: the model that traces an upload"""
    light: int | None = None
    """Family, RayTracing: the threshold step shown; None: where the sample's output fired"""
    layer: int | None = None
    """Family: the selected layer"""
    other: str | None = None
    """Family: a second label, compared with ``label``"""
    against: str | None = None
    """Compare: the second run of a pair"""
    runs: tuple[str, ...] = ()
    """Compare: the runs side by side, the first being what the others differ from; empty: ``run`` and ``against``"""
    part: str = "numbers"
    """Compare: what is shown, one of ``PARTS``"""
    by: str | None = None
    """Compare: measure of the samples; None: the one by which the two differ most"""
    at: int | None = None
    """Compare: iteration whose load is shown, 0 for the untrained twin; None: the last one"""
    number: str | None = None
    """Compare: the number drawn over the training beside the loss; None: effective paths"""
    opens: str | None = None
    """Compare: the run in which a click opens a sample that both have; None: the first"""
    effect: str | None = None
    """Importance: what banning a module does, as drawn; None: the change of the loss where it is known"""
    gate: str | None = None
    """Family, Directional: ``layer.head.direction`` whose words are shown"""
    merge: float | None = None
    """Routes and Family: merge modules below this share of tokens into “other”, per cent; None: automatic if there are
    too many to draw
    """
    inspect: str | None = None
    """what the inspector shows: ``module:step.module``, ``path:rank``, ``token:sample.token`` or ``sample:number``"""
    pinned: str | None = None
    """what stays below it in the inspector, to be compared"""
    words: str = "input"
    """Family, experts: whether an expert's words are input, next or predicted tokens"""
    controls: tuple[str, ...] = ()
    """Family and Change a route: ``name:value`` of the controls for running the sample again"""
    dream: tuple[str, ...] = ()
    """Dream: ``name:value`` of its options (``views.dream.request``)"""
    job: str | None = None
    """Jobs, and every view that starts one: the selected job"""

    def change(self, **changes: Any) -> Selection:
        """A copy with other values that clears dependent fields.

        Another run clears label, filters and sample; another sample the token; another measure the bin; another view
        the job; another place what was searched for and inspected.

        Args:
            changes: Values, or functions of this selection that give them: what is added to a tuple is added to that of
                the click, which another one may have changed since the page was drawn.
        """
        changes = {name: value(self) if callable(value) else value for name, value in changes.items()}
        if "run" in changes and changes["run"] != self.run:
            remaining: dict[str, Any] = {"view": self.view, "opacity": self.opacity, "model": self.model}
            remaining["against"] = self.against if self.against != changes["run"] else None
            if changes["run"] in self.runs:
                remaining |= {"runs": self.runs, "part": self.part}
            return replace(Selection(**remaining), **changes)
        if "view" in changes and changes["view"] != self.view:
            changes = {"job": None, **changes}  # a job belongs to the view that started it
            if PLACE_OF.get(changes["view"]) != PLACE_OF.get(self.view):
                changes = {"inspect": None, "pinned": None, "q": None, **changes}
        if "sample" in changes and changes["sample"] != self.sample:
            changes = {"token": None, "first": 0, **changes}
        if any(name in changes and changes[name] != getattr(self, name) for name in ("measure", "per", "label")):
            changes = {"bin": None, **changes}
        if any(name in changes and changes[name] != getattr(self, name) for name in ("sort", "q", "label")):
            changes = {"more": 0, **changes}
        return replace(self, **changes)

    def toggle_through(self, *nodes: str) -> Selection:
        """Add modules (``step.module``) to the filter, or remove them if all are already in it."""
        if set(nodes) <= set(self.through):
            left = tuple(node for node in self.through if node not in nodes)
        else:
            left = tuple(sorted({*self.through, *nodes}, key=_node_key))
        return self.change(through=left)


def without(name: str, one: Any) -> Callable[[Selection], tuple[Any, ...]]:
    """For ``change``: the tuple ``name`` without ``one``."""
    return lambda now: tuple(other for other in getattr(now, name) if other != one)


def to_query(selection: Selection) -> dict[str, str]:
    """The query of a selection, without defaults."""
    query = {}
    for field in fields(Selection):
        value = getattr(selection, field.name)
        if value == field.default or value is None:
            continue
        if field.name in ("steps", "ranks", "compute", "reuse"):
            value = f"{value[0]:g}:{value[1]:g}" if isinstance(value[0], float) else f"{value[0]}:{value[1]}"
        elif isinstance(value, tuple):
            value = ",".join(map(str, value))
        elif isinstance(value, float):
            value = f"{value:g}"
        query[field.name] = str(value)
    return query


def from_query(query: Mapping[str, str]) -> tuple[Selection, list[str]]:
    """Parse a query string: the selection, and one sentence for each part that is invalid or truncated."""
    values: dict[str, Any] = {}
    problems = []
    for name, text in _renamed(query).items():
        if name not in _READERS:
            if not name.startswith("embed"):  # used by Streamlit itself
                problems.append(f"The address says {name[:40]}={text[:40]!r}, which no view asks for; it was left out.")
            continue
        length, most = len(text.strip()), MOST_WRITTEN.get(name)
        if most is not None and length > most:
            problems.append(f"The address’s {name} is of {length:,} characters; the first {most} were taken.")
        try:
            values[name] = _READERS[name](text)
        except (ValueError, OverflowError):
            problems.append(f"The address says {name}={text[:40]!r}, which is not understood; it was left out.")
    return Selection(**values), problems


def _renamed(query: Mapping[str, str]) -> dict[str, str]:
    """The query of an address of the first design as one of today; any other is returned as it is."""
    renamed = dict(query)
    view, module = query.get("view", ""), renamed.pop("module", None)
    if view in EARLIER_VIEWS:
        renamed["view"] = EARLIER_VIEWS[view]
    if module is not None:
        renamed.setdefault("inspect", f"module:{module}")
    if view == "try" and "run" in query:  # the answer to an upload is a sample like any other
        renamed["view"] = "samples"
        renamed.setdefault("sample", "0")
    elif view == "map" and "sample" in query:  # the map marked it; a sample in an address of today is opened
        renamed["inspect"] = f"sample:{renamed.pop('sample')}"
    return renamed


def _node_key(node: str) -> tuple[int, int]:
    step, module = node.split(".")
    return int(step), int(module)


def _one_of(*allowed: str) -> Any:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return read


def _names(text: str) -> tuple[str, ...]:
    """Names of runs; more than can be compared are left out."""
    names = tuple(dict.fromkeys(text.split(",")))
    if not all(_NAME.fullmatch(name) for name in names):
        raise ValueError
    return names[:MOST_COMPARED]


def _natural(text: str) -> int:
    if not re.fullmatch(r"\d{1,15}", text):
        raise ValueError
    return int(text)


def _between(low: float, high: float, kind: Any = float) -> Any:
    def read(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


def _model(text: str) -> str:
    """The name of a model; ``hf:`` and a folder for a Hugging Face checkpoint."""
    if text.startswith("hf:") and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", text[3:]):
        return text
    return _like(_NAME)(text)


def _steps(text: str) -> tuple[int, int]:
    first, last = (_natural(part) for part in text.split(":"))
    if first >= last:
        raise ValueError
    return first, last


def _rank_range(text: str) -> tuple[int, int]:
    first, last = (_natural(part) for part in text.split(":"))
    if not 1 <= first <= last:
        raise ValueError
    return first, last


def _bounds(text: str) -> tuple[float, float]:
    low, high = (float(part) if re.fullmatch(r"[0-9.]{1,12}", part) else -1.0 for part in text.split(":"))
    if not 0 <= low <= high <= 1:
        raise ValueError
    return low, high


def _nodes(text: str) -> tuple[str, ...]:
    parts = text.split(",")
    if len(parts) > 32 or not all(_NODE.fullmatch(part) for part in parts):
        raise ValueError
    return tuple(dict.fromkeys(parts))


def _like(pattern: re.Pattern[str]) -> Any:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError
        return text

    return read


def _changes(text: str) -> tuple[str, ...]:
    parts = text.split(",")
    if len(parts) > 16 or not all(_CHANGE.fullmatch(part) for part in parts):
        raise ValueError
    return tuple(dict.fromkeys(parts))


def _ranks(text: str) -> tuple[int, ...]:
    ranks = tuple(dict.fromkeys(_natural(part) for part in text.split(",")))
    if len(ranks) > MOST_PATHS or 0 in ranks:
        raise ValueError
    return ranks


_READERS = {
    "view": _one_of(*VIEWS),
    "run": _like(_NAME),
    "label": lambda text: text[: MOST_WRITTEN["label"]] or None,
    "labels": _one_of("merged"),
    "steps": _steps,
    "through": _nodes,
    "paths": _ranks,
    "sample": _natural,
    "token": _natural,
    "tint": _natural,
    "opacity": _between(0, 100, int),
    "hide": _between(0, 100),
    "drawn": _one_of("ribbons", "map"),
    "order": _one_of(*ORDERS),
    "sort": _one_of(*SAMPLE_ORDERS),
    "more": _between(0, MOST_MORE, int),
    "measure": _one_of(*MEASURES),
    "per": _one_of("sample", "token"),
    "bin": _natural,
    "first": _natural,
    "plane": _one_of("pca"),
    "seed": _natural,
    "q": lambda text: text[: MOST_WRITTEN["q"]] or None,
    "find": lambda text: text.strip()[: MOST_WRITTEN["find"]].strip() or None,
    "kind": _one_of(*KINDS),
    "reading": _one_of("word", "token"),
    "ranks": _rank_range,
    "compute": _bounds,
    "reuse": _bounds,
    "model": _model,
    "light": _natural,
    "layer": _natural,
    "other": lambda text: text[: MOST_WRITTEN["other"]] or None,
    "against": _like(_NAME),
    "runs": _names,
    "part": _one_of(*PARTS),
    "by": _one_of("reuse", "compute", "loss"),
    "at": _natural,
    "number": _like(_NAME),
    "opens": _like(_NAME),
    "effect": _one_of(*EFFECTS),
    "gate": _like(_GATE),
    "merge": _between(0, 100),
    "inspect": _like(_INSPECTED),
    "pinned": _like(_INSPECTED),
    "words": _one_of("input", "next", "predicted"),
    "controls": _changes,
    "dream": _changes,
    "job": _like(_NAME),
}
