"""The steps of the tour: words and figures, computed from the sealed files of ``data/tour`` (``make tour``)."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.token_flow import visible

DATA = Path(__file__).resolve().parents[3] / "data"
Step = dict[str, Any]
log = logging.getLogger("tokenpaths.page")


@lru_cache(maxsize=2)
def tours(folder: Path = DATA) -> tuple[dict[str, Any], ...]:
    """The tours {key, name, words, image | word, steps}; none if the files are missing or damaged.

    A step has a ``title``, ``words`` (paragraphs), a ``figure`` as tour.js draws it, and ``link``: (words, place).
    """
    try:
        answers = json.loads((folder / "tour" / "tour.json").read_text("utf-8"))
        return (_photograph(answers["vision"], folder), _text(answers["text"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        log.warning("the tour of %s cannot be read: %s", folder, error)
        return ()


def _png(file: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode("ascii")


def path_words(ribbon: Sequence[int]) -> str:
    """A top-1 path, as in the title of a chart."""
    return " → ".join(map(str, ribbon))


def _photograph(tour: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    image = _png(folder / "samples" / tour["sample"])
    grid, token, ribbon, ban = tour["grid"], tour["token"], tour["ribbon"], tour["ban"]
    same = [place for place, other in enumerate(tour["ribbons"]) if other == ribbon]
    patches, frames = len(tour["ribbons"]), tour["dream"]["frames"]
    elsewhere = tour["on_path"] - len(same)
    picture = {
        "kind": "picture",
        "image": image,
        "rows": grid["rows"],
        "cols": grid["cols"],
        "same": [],
        "chosen": None,
    }
    what = f"The photograph “{tour['title']}”"
    steps: list[Step] = [
        {
            "title": f"A photograph becomes {patches} patches",
            "words": [
                f"{tour['title']}, as the model {tour['model']} sees it: cut into {grid['rows']} × {grid['cols']} "
                "patches. Each patch becomes a token, a list of numbers that travels through the network.",
                f"The model was trained to name what is in a picture, out of {tour['classes']} classes.",
            ],
            "figure": picture | {"label": f"{what} under a grid of {grid['rows']} by {grid['cols']} patches"},
            "link": ("Do this with your own image", "image"),
        },
        {
            "title": "Follow one patch",
            "words": [
                f"This one: row {token // grid['cols']}, column {token % grid['cols']}, a piece of the red saucer.",
                f"The network has {tour['modules']} modules, small networks that were trained together. At each of "
                f"{len(ribbon)} steps a router looks at the token and sends it through one of them. Nobody told a "
                "module what it is for.",
            ],
            "figure": picture | {"chosen": token, "label": f"{what}; one patch of the saucer is marked"},
            "link": ("Choose a patch of your own sample", "samples"),
        },
        *_routing(tour, "patch"),
        {
            "title": f"{len(same)} of the {patches} patches take this path",
            "words": [
                f"The marked patches all go {path_words(ribbon)}: mostly saucer and cup, dark red and brown. "
                "No other patch of the photograph does.",
                "So a path can be read as a group of patches that the network treats alike.",
            ],
            "figure": picture
            | {"chosen": token, "same": same, "label": f"{what}; {len(same)} patches on one path are marked"},
            "link": ("See the paths of your own image", "image"),
        },
        {
            "title": f"{elsewhere} patches of other pictures take it too",
            "words": [
                f"The same model saw {tour['num_samples'] - 1} other pictures, most of them drawn by a program. "
                f"{elsewhere} of their patches, in {tour['on_path_samples'] - 1} pictures, take this path, one of "
                f"{numbers.count(tour['num_paths'])}.",
                "What do they have in common? Look before you read on: mostly brown and reddish surfaces such as sand, "
                "wood and brick, but a few pieces of sky too. A path is a tendency, not a definition.",
            ],
            "figure": {
                "kind": "patches",
                "image": _png(folder / "tour" / "patches.png"),
                "names": [f"patch of a picture of: {other['label'] or 'unknown'}" for other in tour["others"]],
                "label": f"{len(tour['others'])} patches of other pictures on this path",
                "caption": f"{len(tour['others'])} of the {elsewhere}, drawn at random.",
            },
            "link": ("Search the paths of a data set", "paths"),
        },
        {
            "title": f"Without module {ban['module']} at step {ban['step']}: "
            + _change(ban["before"][0]["name"], ban["before"], ban["after"]),
            "words": [
                f"We ban one module on the way. {ban['visited']} of {patches} patches went there; they now go where "
                f"the router sends them next, and {ban['changed']} patches end up on another path.",
                f"Of the {len(ribbon)} bans along this path, this one changes the answer most. Many routes change, the "
                "answer changes little: the other modules can stand in.",
            ],
            "figure": _before_after(ban, "class"),
            "link": ("Change a route yourself", "change"),
        },
        {
            "title": "What would a picture look like that follows this path everywhere?",
            "words": [
                "We start from noise and change the pixels, again and again, until the routers send more and more of "
                "its patches along the path. Researchers call such a picture a dream.",
                f"At the end {numbers.percent(frames[-1]['tokens'])} of the patches take the whole path. The picture "
                "shows what the routers react to, not what the model “means”.",
            ],
            "figure": {
                "kind": "frames",
                "label": "Dream of the path",
                "items": [
                    {
                        "image": _png(folder / "tour" / frame["file"]),
                        "name": numbers.count(frame["iteration"]),
                        "words": f"After {numbers.plural(frame['iteration'], 'iteration')}: "
                        f"{numbers.percent(frame['tokens'])} of the patches take the path.",
                    }
                    for frame in frames
                ],
            },
            "link": ("Dream of another path", "dream"),
        },
    ]
    return {
        "key": "photograph",
        "name": "Follow a patch of a photograph",
        "words": f"{len(steps)} small steps",
        "image": image,
        "steps": steps,
    }


def _text(tour: Mapping[str, Any]) -> dict[str, Any]:
    token, ribbon, ban = tour["token"], tour["ribbon"], tour["ban"]
    same = [place for place, other in enumerate(tour["ribbons"]) if other == ribbon]
    word = tour["text"][slice(*tour["spans"][token])]
    elsewhere = tour["on_path"] - len(same)
    tokens = len(tour["ribbons"])

    def text(marks: Mapping[int, str], label: str) -> dict[str, Any]:
        return {"kind": "text", "pieces": _pieces(tour["text"], tour["spans"], marks), "label": label}

    here = {tour["text"][slice(*tour["spans"][place])].strip() for place in same}
    there = {other["text"].strip() for other in tour["others"]}
    steps: list[Step] = [
        {
            "title": f"A text becomes {numbers.count(tokens)} tokens",
            "words": [
                "A language model reads tokens: whole words, pieces of words, marks. Each underlined stretch is one.",
                f"The model {tour['model']} was trained to predict the next token.",
            ],
            "figure": text({}, "A text about glaciers, its tokens underlined"),
            "link": ("Do this with your own text", "text"),
        },
        {
            "title": f"Follow one token: “{word}”",
            "words": [
                "A full stop. It seems to say little; for a model that predicts what comes next, it says a lot.",
                f"Its way has {len(ribbon)} steps. At each of them a router chooses one of {tour['modules']} modules.",
            ],
            "figure": text({token: "chosen"}, "A text about glaciers; one full stop is marked"),
            "link": ("Choose a token of your own sample", "samples"),
        },
        *_routing(tour, "token"),
        {
            "title": f"{len(same)} tokens of this text take the path" + _all_are(here),
            "words": [
                f"All of them go {path_words(ribbon)}. No rule of grammar was built in.",
                "Not every full stop does: some leave the path at one step.",
            ],
            "figure": text(
                {place: "chosen" if place == token else "same" for place in same},
                f"A text about glaciers; {len(same)} tokens on one path are marked",
            ),
            "link": ("See the paths of your own text", "text"),
        },
        {
            "title": f"So do {numbers.plural(elsewhere, 'token')} of other texts" + _all_are(there),
            "words": [
                f"The same model read {tour['num_samples'] - 1} other short texts. Out of "
                f"{numbers.count(tour['num_tokens'])} tokens in all, {tour['on_path']} take this path, one of "
                f"{numbers.count(tour['num_paths'])}.",
                "Such groups can be searched for: by word, by kind of word, by path.",
            ],
            "figure": {"kind": "contexts", "items": [_in_context(other) for other in tour["others"]]},
            "link": ("Search the paths of a data set", "paths"),
        },
        {
            "title": f"Without module {ban['module']} at step {ban['step']}: "
            + _change(ban["before"][0]["name"], ban["before"], ban["after"]),
            "words": [
                f"We ban one module on the way. {ban['visited']} of {numbers.count(tokens)} tokens went there, and "
                f"{ban['changed']} end up on another path.",
                "Left and right: what the model expects after this full stop, before and after. Of the "
                f"{len(ribbon)} bans along this path, this one changes the prediction most.",
            ],
            "figure": _before_after(ban, "next token"),
            "link": ("Change a route yourself", "change"),
        },
    ]
    return {
        "key": "text",
        "name": "Follow a full stop of a text",
        "words": f"{len(steps)} small steps",
        "word": word,
        "steps": steps,
    }


def _routing(tour: Mapping[str, Any], what: str) -> list[Step]:
    """The first router's probabilities, then the whole way."""
    way, ribbon = tour["way"], tour["ribbon"]
    first = way[0]
    return [
        {
            "title": f"Step 0: the router prefers module {first['module']}",
            "words": [
                f"The router gives each of the {tour['modules']} modules a probability. Module {first['module']} has "
                f"the highest, {numbers.percent(max(first['probs']))}, and takes the {what}. Steps are counted from 0.",
                "The probabilities depend on what the token holds now; after each module it holds something else.",
            ],
            "figure": {
                "kind": "bars",
                "rows": [
                    {
                        "name": f"module {module}",
                        "value": probability,
                        "text": numbers.percent(probability),
                        "chosen": module == first["module"],
                    }
                    for module, probability in enumerate(first["probs"])
                ],
                "caption": "Bars: the router’s probabilities at step 0.",
            },
            "link": ("See what each module is for", "modules"),
        },
        {
            "title": f"Its path: {path_words(ribbon)}",
            "words": [
                f"At every step the {what} moves on to the module with the highest probability. The sequence of these "
                "modules is its path.",
                "A large circle means that the router was sure; circles of equal size, that it could have gone "
                "elsewhere.",
            ],
            "figure": {
                "kind": "way",
                "steps": way,
                "modules": tour["modules"],
                "label": f"The way of the {what} over {len(ribbon)} steps: modules {path_words(ribbon)}",
                "caption": "Columns: steps. Rows: modules. Area of a circle: the router’s probability. "
                "Line: the way taken.",
            },
            "link": ("See where all tokens of a run go", "routes"),
        },
    ]


def _in_context(other: Mapping[str, Any]) -> dict[str, str]:
    """A token of another text, its context cut at words."""
    before, after = other["before"], other["after"]
    before = "… " + before.partition(" ")[2] if " " in before else before
    after = after.rpartition(" ")[0] + " …" if " " in after.strip() else after
    return {"before": before, "text": other["text"], "after": after}


def _all_are(texts: set[str]) -> str:
    """``: each is “.”`` if the tokens are all alike."""
    return f": each is “{next(iter(texts))}”" if len(texts) == 1 else ""


def _pieces(text: str, spans: Sequence[Sequence[int]], marks: Mapping[int, str]) -> list[dict[str, Any]]:
    """The text in pieces of one token each, or between tokens."""
    pieces: list[dict[str, Any]] = []
    at = 0
    for place, (start, end) in enumerate(spans):
        if start > at:
            pieces.append({"text": text[at:start], "mark": ""})
        if end > max(at, start):
            pieces.append({"text": text[max(at, start) : end], "mark": marks.get(place, "")})
        at = max(at, end)
    return pieces + ([{"text": text[at:], "mark": ""}] if text[at:] else [])


def name_words(name: str) -> str:
    """A class, or a next token whose blanks can be seen."""
    return {"\n": "line break", " ": "blank", "": "unreadable"}.get(name, visible(name))


def _change(name: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    """``espresso 68 % → 59 %`` of the likeliest answer."""
    then = next((row["probability"] for row in after if row["name"] == name), None)
    words = numbers.percent(then) if then is not None else f"under {numbers.percent(after[-1]['probability'])}"
    return f"{name_words(name)} {numbers.percent(before[0]['probability'])} → {words}"


def _before_after(ban: Mapping[str, Any], of: str) -> dict[str, Any]:
    likeliest = ban["before"][0]["name"]
    sides: list[dict[str, Any]] = [
        {
            "name": words,
            "rows": [
                {
                    "name": name_words(row["name"]),
                    "value": row["probability"],
                    "text": numbers.percent(row["probability"]),
                    "chosen": row["name"] == likeliest,
                }
                for row in ban[when]
            ],
        }
        for when, words in (("before", "As trained"), ("after", f"Without module {ban['module']}"))
    ]
    return {
        "kind": "pair",
        "sides": sides,
        "most": max(row["value"] for side in sides for row in side["rows"]),
        "caption": f"The five likeliest: probability of each {of}.",
    }
