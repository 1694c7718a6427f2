"""``tokenpaths.explore(run)``: the page's sample explorer in a notebook.

The drawing is the page's (components/explorer.js, wall.js); widget.js adds the choice of a sample. Scripts and styles
are part of the widget's state, so neither a server nor a network is needed.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets as tr
from traitlets import TraitError

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, theme_named
from tokenpaths.frontend.charts.drawing.running_text import isolated, tamed, with_text
from tokenpaths.frontend.charts.drawing.slots import offered_ids
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.explorer_data import MOST_LINKS, Tint, explorer_data
from tokenpaths.frontend.components.wall_data import token_items, wall_data
from tokenpaths.frontend.figures.common import all_differ, identities
from tokenpaths.frontend.figures.figure import Source
from tokenpaths.frontend.figures.flows import merged_modules

_FRONTEND = Path(__file__).resolve().parents[1]
MOST_LISTED = 300
"""samples in the list; any other can be set from Python"""
MOST_NEIGHBOURS = 24
OPACITY = 0.65
DRAWN = ("_view", "_path", "sample", "token", "through", "tint")
"""the traits that widget.js draws"""


@lru_cache(maxsize=1)
def _script() -> str:
    files = ("components/explorer.js", "components/wall.js", "notebook/widget.js")
    return "\n".join((_FRONTEND / file).read_text("utf-8") for file in files)


@lru_cache(maxsize=1)
def _style() -> str:
    """Nested, so that nothing else of the notebook is styled."""
    files = ("components/explorer.css", "components/wall.css", "notebook/widget.css")
    rules = "\n".join((_FRONTEND / file).read_text("utf-8") for file in files)
    return f".tp-widget {{\n{rules}\n}}\n"


class Explorer(anywidget.AnyWidget):
    """One sample of a run, its flow, and the path of a chosen token; linked with Python by its traits.

    ``widget.observe(function, "token")`` calls ``function`` when a token is chosen in the notebook.
    """

    _esm = _script()
    _css = _style()
    sample = tr.Int(0, help="number of the sample").tag(sync=True)
    token = tr.Int(None, allow_none=True, help="the chosen token of the sample").tag(sync=True)
    through = tr.Unicode(None, allow_none=True, help="`step.module`: tokens that do not go there are faded").tag(
        sync=True
    )
    tint = tr.Int(None, allow_none=True, help="colours: the module of this step; None: the CDF of the path").tag(
        sync=True
    )
    theme = tr.Enum(("auto", "light", "dark"), "auto", help="colours; auto: those of the notebook").tag(sync=True)
    _dark = tr.Bool(False).tag(sync=True)
    _view = tr.Dict().tag(sync=True)
    _path: Any = tr.Dict(None, allow_none=True).tag(sync=True)

    def __init__(self, run: Source, **traits: Any) -> None:
        self.run, self._info = run, run.info()
        self._identities = frozenset(identities(self._info))
        self._offered = offered_ids(self._info)
        self._flow = run.flow(limit=MOST_LINKS, most_modules=merged_modules(self._info))
        self._samples = run.samples(limit=MOST_LISTED)
        self._now: dict[str, Any] = {}
        if all_differ(self._info):  # ranks of paths say nothing where every token has its own
            traits.setdefault("tint", 0)
        first = traits.get("sample", 0)
        self._now = with_text(run.sample(first))
        super().__init__(**traits)
        self._draw()
        self._draw_path()
        self.observe(self._other_sample, "sample")
        self.observe(lambda _: self._draw(), ["through", "tint"])
        self.observe(lambda _: self._draw_path(), "token")
        self.observe(lambda _: self._draw(), ["theme", "_dark"])
        self.observe(lambda _: self._draw_path(), ["theme", "_dark"])
        self.on_msg(self._message)

    def show(self, sample: int, token: int | None = None) -> None:
        """Show another sample, with a token chosen."""
        with self.hold_sync():
            self.sample = sample
            self.token = token

    @property
    def ribbon(self) -> list[list[int]] | None:
        """The modules of the chosen token, step by step; None if none is chosen."""
        return next((token["ribbon"] for token in self._now["tokens"] if token["token"] == self.token), None)

    @tr.validate("sample")
    def _check_sample(self, proposal: Any) -> int:
        number = int(proposal["value"])
        if number != self._now["sample"]:
            self._now = with_text(self.run.sample(number))  # its own error names what there is
        return number

    @tr.validate("token")
    def _check_token(self, proposal: Any) -> int | None:
        number, last = proposal["value"], len(self._now["tokens"]) - 1
        if number is not None and not 0 <= number <= last:
            raise TraitError(f"sample {self._now['sample']} has the tokens 0 to {last}, not {number}")
        return number

    @tr.validate("tint")
    def _check_tint(self, proposal: Any) -> int | None:
        number, last = proposal["value"], int(self._info["num_steps"]) - 1
        if number is not None and not 0 <= number <= last:
            raise TraitError(f"this run has the steps 0 to {last}, not {number}")
        return number

    @tr.validate("through")
    def _check_through(self, proposal: Any) -> str | None:
        node = proposal["value"]
        if node is None:
            return None
        if not re.fullmatch(r"[0-9]+\.[0-9]+", node):
            raise TraitError(f"through is {node!r}; it should be a step and a module, for example '1.4'")
        steps, modules = int(self._info["num_steps"]), int(self._info["num_modules"])
        step, module = map(int, node.split("."))
        if step >= steps or module >= modules:
            raise TraitError(
                f"through is {node!r}; this run has the steps 0 to {steps - 1} and the modules 0 to {modules - 1}"
            )
        return str(node)

    def _other_sample(self, _: Any) -> None:
        with self.hold_sync():
            self.token = None
            self._draw()

    def _message(self, _: Any, content: Any, _buffers: Any) -> None:
        """A neighbour on the same path was clicked: ``{"sample": …, "token": …}``."""
        self.show(int(content["sample"]), None if content["token"] is None else int(content["token"]))

    @property
    def _colours(self) -> Theme:
        return theme_named(self.theme if self.theme != "auto" else "dark" if self._dark else "light")

    def _passes(self, token: Mapping[str, Any]) -> bool:
        if self.through is None:
            return True
        step, module = map(int, self.through.split("."))
        return step < len(token["ribbon"]) and module in token["ribbon"][step]

    def _draw(self) -> None:
        """Everything but the chosen token's path."""
        sample, look = self._now, self._colours
        image = data_url(self.run.picture(sample["sample"])) if sample.get("has_image") else None
        data = explorer_data(
            sample,
            self._flow,
            Tint(look, int(self._info["num_paths"]), OPACITY, self.tint, self._identities, self._offered),
            image=image,
            chosen=self.token,
            kept=self._passes,
        )
        rows = {row["sample"]: row for row in self._samples["samples"]} | {sample["sample"]: sample}
        self._view = {
            "sample": sample["sample"],
            "total": self._samples["total"],
            "title": tamed(f"{self._info['run']}: {self._info['model']} on {self._info['dataset']}"),
            "samples": [[number, _words(row)] for number, row in sorted(rows.items())],
            "steps": int(self._info["num_steps"]),
            "paths": not all_differ(self._info),
            "data": data,
            "colours": {name: getattr(look, name) for name in ("background", "ink", "muted", "grid", "accent")},
            "scheme": look.name,
        }

    def _draw_path(self) -> None:
        """What is on the chosen token's path beside it."""
        token = next((token for token in self._now["tokens"] if token["token"] == self.token), None)
        if token is None:
            self._path = None
            return
        path = self.run.examples(token["rank"], limit=MOST_NEIGHBOURS)
        here = (self.sample, self.token)
        others = [one for one in path["examples"] if (one["sample"], one["token"]) != here]
        words = (
            f"Path of rank {numbers.count(path['rank'])}: {numbers.plural(path['count'], 'token')} of the run, "
            f"{numbers.percent(path['share'])}; compute {numbers.percent(token['compute'])}, reuse "
            f"{numbers.percent(token['reuse'])}."
        )
        if not others:
            words += " No other token takes it."
        elif path["count"] - 1 > len(others):
            words += f" {len(others)} of the others:"
        else:
            words += " The others:"
        wall = wall_data(*token_items(others), self._colours) if others else None
        self._path = {"sample": self.sample, "token": self.token, "words": words, "wall": wall}

    def to_html(self) -> str:
        """The explorer as a piece of HTML that needs neither Python nor a network; it shows this sample alone.

        Notebooks hold it beside the widget, for exports and viewers without widgets.
        """
        place = f"tp-{uuid.uuid4().hex}"
        state = {name: getattr(self, name) for name in (*DRAWN, "theme", "_dark")} | {"_still": True}
        # Nothing in a text can end the script that holds it.
        written = json.dumps(state).replace("<", "\\u003c")
        script = f"{_script()}\nshowStill(document.getElementById({place!r}), {written});"
        return f'<style>{_style()}</style><div id="{place}"></div><script type="module">\n{script}\n</script>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        if not bundle:
            return bundle
        data, metadata = bundle
        return {**data, "text/html": self.to_html()}, metadata


def _words(row: Mapping[str, Any]) -> str:
    """A sample in the list: its number, label and the begin of its text or the name of its file."""
    text = tamed(str(row.get("snippet") or row.get("text") or row.get("source") or ""))[:50].replace("\n", " ")
    words = " · ".join(part for part in (f"{row['sample']:,}", tamed(str(row.get("label") or "")), text) if part)
    return isolated(words)
