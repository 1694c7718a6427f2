"""Options of a dream in the URL, the job request made from them, and the expected duration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.dream.connection import existing

GROUPS = {
    "all": "the whole image",
    "path": "patches on the chosen patch's path",
    "picked": "patches that I click",
    "drawn": "patches drawn at random",
}
TOKEN_GROUPS = {
    "all": "the whole text",
    "path": "tokens on the chosen token's path",
    "picked": "tokens that I click",
    "drawn": "tokens drawn at random",
}
DEFAULTS: dict[str, str] = {
    "of": "",
    "group": "all",
    "picked": "",
    "draw": "8",
    "until": "0",
    "form": "cumulative",
    "context": "without",
    "scores": "probs",
    "iterations": "",
    "precision": "float32",
    "module": "0",
    "step": "-1",
    "index": "0",
    "at": "0.0.0",
    "rank": "1",
    "first": "0",
    "length": "12",
}
ALLOWED = {
    "form": ("cumulative", "single"),
    "context": ("without", "with", "both"),
    "scores": ("probs", "logits"),
    "precision": ("float32", "bfloat16"),
}
NUMBERS = ("draw", "until", "iterations", "module", "step", "index", "rank", "first", "length")
IMAGE_ITERATIONS = (64, 128, 256, 512, 1024, 2048)
TEXT_ITERATIONS = (16, 32, 64, 128)
MOST_ITERATIONS = 65_536
MOST_LENGTH = 96
"""maximum tokens of a text dream on the page; longer ones need the command line"""
MOST_WRITTEN = 200
"""maximum characters of one option in the URL"""
KINDS = {
    ("dna", "vision"): {
        "choices": "the choices of this image",
        "path": "a path of the run",
        "module": "a module",
        "class": "a class",
    },
    ("dna", "text"): {"path": "a path of the run", "choices": "the choices of this text", "module": "a module"},
    ("hmodel", "text"): {"connection": "a connection"},
    ("directional", "text"): {"direction": "a direction that is taken out"},
    ("raytracing", "vision"): {"block": "a block", "class": "a class"},
}
"""(family, modality) → supported objectives"""
PATH_QUESTION = "What input would follow this path best?"
SOUGHT = {
    "choices": (PATH_QUESTION, "the routers make these choices"),
    "path": (PATH_QUESTION, "the routers choose this path"),
    "module": ("What input would go to this module?", "the routers choose this module"),
    "class": ("What image would be of this class?", "the model sees this class in it"),
    "connection": ("What text would use this connection most?", "this connection becomes as strong as it can"),
    "direction": (
        "What text has most of this direction taken out?",
        "as much of this direction as possible is removed",
    ),
    "block": ("What image would light this block most?", "this block fires as strongly as it can"),
}
"""objective → the question of the view, and what the input is optimised for"""
AT = {
    "connection": ("iteration", "source", "target"),
    "direction": ("layer", "head", "direction"),
    "block": ("layer", "block"),
}
IMAGE_SECONDS = 0.02
"""core seconds per iteration of one image dream"""
BFLOAT16_TIME = 0.65
"""of it with products in bfloat16 (``python -m benchmarks.dream_speed``)"""
SCAN_SECONDS = 0.00011
"""core seconds per token of the bundled texts scanned"""
SWAP_SECONDS = 0.00012
"""core seconds per token of a candidate swap"""
WINDOWS, STARTS, CANDIDATES = 4096, 8, 24
"""defaults of a text dream"""


def kinds_of(run: Mapping[str, Any]) -> dict[str, str]:
    """The objectives that a run's model supports; empty for a family without dreams."""
    return KINDS.get((run["family"], run["modality"]), {})


def dream_options(selection: Selection, run: Mapping[str, Any]) -> dict[str, str]:
    """All options of a dream; those not in the URL have their defaults."""
    written = dict(part.split(":", 1) for part in selection.dream)
    values = {name: written.get(name, default) for name, default in DEFAULTS.items()}
    kinds = kinds_of(run)
    if values["of"] not in kinds:
        values["of"] = next(iter(kinds), "")
    if values["group"] not in GROUPS:
        values["group"] = "all"
    for name, allowed in ALLOWED.items():
        if values[name] not in allowed:
            values[name] = DEFAULTS[name]
    if not 0 < _number(values["iterations"]) <= MOST_ITERATIONS:
        values["iterations"] = str(iterations_of(run)[2 if run["modality"] == "vision" else 1])
    if values["of"] == "connection":
        values["at"] = ".".join(map(str, existing(run, at_of(values, "connection"))))
    values["length"] = str(min(max(1, _number(values["length"])), longest(run)))
    return values


def problems(selection: Selection, run: Mapping[str, Any]) -> list[str]:
    """One message for each option of the address that is invalid here, naming what is used instead."""
    kinds, messages = kinds_of(run), []
    if not kinds:
        return []
    values = dream_options(selection, run)
    words = {"of": kinds, "group": GROUPS, **{name: dict.fromkeys(of, "") for name, of in ALLOWED.items()}}
    for part in selection.dream:
        name, text = part.split(":", 1)
        start = f"The address says dream={name}:{text[:40]}"
        if name not in DEFAULTS:
            messages.append(f"{start}, which no dream asks for; it was left out.")
        elif name in words and text not in words[name]:
            instead = words[name].get(values[name]) or values[name]
            messages.append(f"{start}, which is none of {', '.join(words[name])}; in its place stands {instead}.")
        elif name in NUMBERS and not re.fullmatch(r"-?\d{1,9}", text):
            messages.append(f"{start}, which is no number; it was left out.")
        elif name == "at" and values["of"] == "connection" and values["at"] != text:
            messages.append(f"{start}, a connection that does not exist; in its place stands {values['at']}.")
    return messages


def longest(run: Mapping[str, Any]) -> int:
    """Maximum length in tokens of a text dream for this run."""
    return min(MOST_LENGTH, int((run.get("config") or {}).get("context") or MOST_LENGTH))


def stretch(options: Mapping[str, str], num_tokens: int) -> range:
    """The tokens of the original that a text dream repeats."""
    first = min(_number(options["first"]), max(0, num_tokens - 1))
    return range(first, min(first + max(1, _number(options["length"])), num_tokens))


def options_of(request: Mapping[str, Any], image: bool) -> tuple[str, ...]:
    """The options of a job request in the URL's form, without those that the page does not offer."""
    target = request["target"]
    of, group = target["of"], target.get("group") or {}
    settings = request.get("image" if image else "text") or {}
    values: dict[str, object] = {"of": of, "scores": target.get("scores"), "iterations": settings.get("iterations")}
    if image:
        values |= {"precision": settings.get("precision")}
    else:
        values |= {"length": settings.get("length"), "first": target.get("first")}
    until: Sequence[int] = target.get("until") or ()
    steps: Sequence[int] = target.get("steps") or ()
    if of == "choices":
        clicked = ".".join(map(str, group.get("patches") or ()))
        values |= {
            "until": until[0] if len(until) == 1 else None,
            "form": target.get("form"),
            "context": target.get("context"),
            "draw": group.get("draw"),
            "group": "path"
            if group.get("like") is not None
            else "picked"
            if group.get("patches")
            else "drawn"
            if group.get("draw")
            else None,
            "picked": clicked if len(clicked) <= MOST_WRITTEN else None,
        }
    values |= {"rank": target.get("rank"), "module": target.get("module"), "index": target.get("index")}
    values["step"] = steps[0] if of == "module" and len(steps) == 1 else None
    if of in AT:
        values["at"] = ".".join(str(target[name]) for name in AT[of])
        values["module"] = None
    options: tuple[str, ...] = ()
    for name, value in values.items():
        options = with_option(options, name, "" if value is None else value)
    return options


def selection_of(job: Mapping[str, Any], run: str | None = None, *, image: bool | None = None) -> Selection:
    """Selection that shows a dream: its run (``run`` if the job names none), sample and options.

    Without a run the Dream view looks for one of the same model. ``image``: whether it is one of images; None where
    only the job is at hand, whose result tells, once it has one.
    """
    request = job["request"]
    dreams = (job.get("result") or {}).get("dreams") or [{}]
    group = request["target"].get("group") or {}
    return Selection(
        view="dream",
        run=request.get("run") or run,
        sample=request.get("sample"),
        token=group.get("like"),
        dream=options_of(request, "text" not in dreams[0] if image is None else image),
        job=job["job"],
    )


def iterations_of(run: Mapping[str, Any]) -> tuple[int, ...]:
    """Iteration counts offered."""
    return IMAGE_ITERATIONS if run["modality"] == "vision" else TEXT_ITERATIONS


def with_option(dream: Sequence[str], name: str, value: object) -> tuple[str, ...]:
    """The options in the URL with one changed; defaults are left out."""
    others = tuple(part for part in dream if part.split(":", 1)[0] != name)
    text = str(value)
    return others if text == DEFAULTS[name] or not text else (*others, f"{name}:{text}")


def picked(options: Mapping[str, str]) -> list[int]:
    """Selected tokens in ascending order."""
    return sorted({int(part) for part in options["picked"].split(".") if part.isdecimal() and len(part) < 10})


def toggled(options: Mapping[str, str], token: int) -> str:
    """The selected tokens with ``token`` added or removed."""
    return ".".join(map(str, sorted(set(picked(options)) ^ {token})))


def members(options: Mapping[str, str], tokens: Sequence[Mapping[str, Any]], chosen: int | None) -> set[int] | None:
    """Tokens of the group if known before the dream; None: all, or drawn later."""
    if options["group"] == "picked":
        return set(picked(options))
    if options["group"] == "path":
        rank = next((token["rank"] for token in tokens if token["token"] == chosen), None)
        return {token["token"] for token in tokens if token["rank"] == rank} if rank is not None else set()
    return None


def missing(options: Mapping[str, str], chosen: int | None, modality: str, among: range | None = None) -> str:
    """What must still be selected before the dream can start, as a sentence; empty if nothing.

    Args:
        among: The tokens of a text that are dreamt; None: all.
    """
    what = "patch" if modality == "vision" else "token"
    if options["of"] != "choices":
        return ""
    group = {"path": [] if chosen is None else [chosen], "picked": picked(options)}.get(options["group"], [])
    if among is not None and (outside := [token for token in group if token not in among]):
        return (
            f"Token {outside[0]} is not among those that are dreamt, {among.start} to {among.stop - 1}: choose "
            "other tokens, or another stretch."
        )
    if among is not None and options["group"] == "drawn" and _number(options["draw"]) > len(among):
        return f"{options['draw']} tokens cannot be drawn from the {len(among)} that are dreamt."
    if options["group"] == "path" and chosen is None:
        return f"Click a {what}: the dream follows the path that it takes."
    if options["group"] == "picked" and not picked(options):
        return f"Click at least one {what}."
    return ""


def request_of(
    run: Mapping[str, Any], options: Mapping[str, str], sample: int | None, chosen: int | None
) -> dict[str, Any]:
    """The body of a dream job."""
    of = options["of"]
    target: dict[str, Any] = {"of": of}
    request: dict[str, Any] = {"model": run["model"], "target": target}
    settings: dict[str, Any] = {"iterations": int(options["iterations"])}
    request["image" if run["modality"] == "vision" else "text"] = settings
    if run["modality"] == "text":
        settings["length"] = int(options["length"])
    else:
        settings["precision"] = options["precision"]
        request["frame_every"] = max(64, int(options["iterations"]) // 16 // 64 * 64)
    if of in ("choices", "path", "module"):
        target["scores"] = options["scores"]
    if of == "choices":
        request |= {"run": run["run"], "sample": sample}
        target |= {"form": options["form"], "group": _group(options, chosen)}
        if run["modality"] == "text":
            target["first"] = _number(options["first"])
        if run["modality"] == "vision" and options["group"] != "all":
            target["context"] = options["context"]
        steps = int(run["num_steps"])
        until = _number(options["until"])
        if until or run["modality"] == "text":
            target["until"] = [min(until or steps, steps)]
    elif of == "path":
        request["run"] = run["run"]
        target["rank"] = max(1, _number(options["rank"]))
    elif of == "module":
        target["module"] = _number(options["module"])
        if options["step"] != "-1":
            target["steps"] = [_number(options["step"])]
    elif of == "class":
        target["index"] = _number(options["index"])
    else:
        target |= dict(zip(AT[of], at_of(options, of), strict=True))
    return request


def at_of(options: Mapping[str, str], of: str) -> list[int]:
    """The indices of a connection, a direction or a block."""
    values = [_number(part) for part in options["at"].split(".")]
    return (values + [0, 0, 0])[: len(AT[of])]


def _group(options: Mapping[str, str], chosen: int | None) -> dict[str, Any]:
    if options["group"] == "path":
        return {"like": chosen}
    if options["group"] == "picked":
        return {"patches": picked(options)}
    return {"draw": max(1, _number(options["draw"]))} if options["group"] == "drawn" else {}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def image_seconds(iterations: int, dreams: int, precision: str = "float32") -> float:
    """Expected core seconds of a batch of image dreams."""
    return IMAGE_SECONDS * iterations * dreams * (BFLOAT16_TIME if precision == "bfloat16" else 1)


def text_seconds(rounds: int, length: int, text: Mapping[str, Any] | None = None) -> tuple[float, float]:
    """Expected seconds of a text dream: (scan of the bundled texts, rounds)."""
    options = text or {}
    windows = options.get("corpus_windows") or WINDOWS
    tried = (options.get("starts") or STARTS) * (options.get("candidates") or CANDIDATES)
    return SCAN_SECONDS * windows * length, SWAP_SECONDS * rounds * tried * length


def pace(jobs: Sequence[Mapping[str, Any]]) -> float | None:
    """Ratio of actual to expected duration of the model's finished dreams; None if there are none.

    Interrupted dreams are left out, and text dreams whose search ended early.
    """
    ratios = []
    for job in jobs:
        if job["state"] != "succeeded" or job["attempts"] != 1 or not (job["started_at"] and job["finished_at"]):
            continue
        took = (datetime.fromisoformat(job["finished_at"]) - datetime.fromisoformat(job["started_at"])).total_seconds()
        expected = expected_of(job)
        if took > 0 and expected > 0:
            ratios.append(took / expected)
    return median(ratios) if ratios else None


def expected_of(job: Mapping[str, Any]) -> float:
    """Expected seconds of a finished dream by the constants above; 0 if unknown."""
    dreams, request = (job["result"] or {}).get("dreams") or [], job["request"]
    if dreams and "text" in dreams[0]:
        text = request.get("text") or {}
        rounds = job["progress"]["done"] if job["progress"]["unit"] == "rounds" else text.get("iterations", 0)
        return sum(text_seconds(rounds, int(text.get("length") or 12), text))
    image = request.get("image") or {}
    return image_seconds(int(image.get("iterations") or 0), len(dreams), image.get("precision") or "float32")


def cost_words(
    image: bool, iterations: int, dreams: int, length: int, measured: float | None, precision: str = "float32"
) -> str:
    """The expected duration in a sentence or two."""
    by = "by the time that earlier dreams of this model took here" if measured else "on one core, for a shipped model"
    times = measured or 1.0
    if image:
        what = "One dream" if dreams == 1 else f"{dreams} dreams as one batch"
        return f"{what}, about {_time(times * image_seconds(iterations, dreams, precision))} {by}."
    scan, rounds = text_seconds(iterations, length)
    return (
        f"Two parts: looking through the bundled texts, about {_time(times * scan)}, then at most {iterations:,} "
        f"rounds, about {_time(times * rounds)}; {by}."
    )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
