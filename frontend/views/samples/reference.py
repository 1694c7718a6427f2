"""Ranks of an upload: those of a reference run of the same model, with the sentence that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.views import common

SHAPE = ("num_steps", "num_modules", "top_k")
HOW = {"checkpoint": "of the same weights", "model": "of the same model", "named": "from which the sample was taken"}


@dataclass(frozen=True)
class Ranked:
    """A sample whose tokens have the ranks, counts and shares of ``reference``, and what that run is.

    ``reference`` None: ranks are those of the sample's own run, or, if ``reason`` says why, there are none.
    """

    sample: dict[str, Any]
    reference: Mapping[str, Any] | None = None
    answer: Mapping[str, Any] | None = None
    """``GET /runs/{run}/samples/{sample}/reference`` without paths and samples beside it"""
    reason: str | None = None

    def num_paths(self, run: Mapping[str, Any]) -> int:
        """Paths that the ranks are among."""
        return int((self.reference or run)["num_paths"])

    def all_differ(self, run: Mapping[str, Any]) -> bool:
        """Whether the ink of paths says nothing: nearly every token has its own, or nothing ranks them."""
        whose = run if self.reference is None else {**self.reference, "num_steps": run["num_steps"]}
        return self.reason is not None or common.all_differ(whose)

    @property
    def name(self) -> str | None:
        return None if self.reference is None else str(self.reference["run"])


def ranked(run: Mapping[str, Any], sample: Mapping[str, Any], *, source: Mapping[str, Any] | None = None) -> Ranked:
    """``sample`` of ``run``; an upload, with the ranks that its paths have in its reference run.

    Args:
        source: The run from which a sample that was run again was taken. Where that is one over a data set, it is the
            reference, so that a path has the ink and the rank that it has in the views of that run.
    """
    known = source is not None and not common.is_try(source) and all(source[name] == run[name] for name in SHAPE)
    if source is not None and known:
        if source["run"] == run["run"]:
            return Ranked(dict(sample))
    elif not common.is_try(run):
        return Ranked(dict(sample))
    asked = {"sample": sample["sample"], "similar": 0, "unusual": 0}
    asked |= {"reference": source["run"]} if source is not None and known else {}
    answer = widgets.client().ask(run["run"], "samples/{sample}/reference", **asked)
    if answer["reference"] is None:
        nothing = {"rank": None, "cdf": None, "cdf_middle": None, "path_tokens": 0}
        return Ranked(_with_tokens(sample, [nothing] * len(sample["tokens"])), answer=answer, reason=answer["reason"])
    return Ranked(_with_tokens(sample, answer["tokens"]), answer["reference"], answer)


def beside(run: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    """The same answer with what the reference has beside an upload: the paths nearest to those that it has not, and
    samples. The first such question to a hundred million tokens takes seconds, the ranks a tenth of one.
    """
    answer: dict[str, Any] = widgets.client().ask(run["run"], "samples/{sample}/reference", sample=sample["sample"])
    return answer


def _with_tokens(sample: Mapping[str, Any], ranks: list[dict[str, Any]]) -> dict[str, Any]:
    return {**sample, "tokens": [{**token, **row} for token, row in zip(sample["tokens"], ranks, strict=True)]}


def say_where_ranks_are_from(one: Ranked) -> None:
    """“Ranks are from run X …”, or why there are none; nothing for a sample of a data set."""
    if one.reason is not None:
        st.caption(widgets.escape(one.reason + ". Until then tokens are tinted by module."))
    elif one.reference is not None:
        split = f" ({one.reference['split']})" if one.reference.get("split") not in (None, "", "all") else ""
        how = HOW[(one.answer or {}).get("found_by") or "model"]
        st.caption(
            widgets.escape(
                f"Ranks, counts and colours of paths are those of run {one.reference['run']}, {how}: "
                f"{numbers.plural(one.reference['num_tokens'], 'token')} of {one.reference['dataset']}{split}."
            )
        )
