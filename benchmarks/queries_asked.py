"""Every question about a run that the views of the page ask the API, with arguments as a reader would choose them.

A question is known by the name of its declaration; a test compares this list with the declared questions and with the
methods of the page's client, so that a new one is measured or named among ``NOT_MEASURED``. Arguments are drawn so that
no answer is in a cache already: samples evenly, paths by their frequency, labels, steps and modules evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Asked = tuple[str, dict[str, Any]]
"""path below ``/runs/{run}`` and query"""


@dataclass(frozen=True)
class About:
    """What the arguments are drawn from."""

    num_samples: int
    num_paths: int
    num_steps: int
    labels: tuple[str, ...]
    modules: tuple[int, ...]
    words: tuple[str, ...]

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> About:
        """From the answer of ``GET /runs/{run}``."""
        return cls(
            num_samples=info["num_samples"],
            num_paths=info["num_paths"],
            num_steps=info["num_steps"],
            labels=tuple(row["label"] for row in info["labels"]),
            modules=tuple(m["module"] for m in info["modules"]),
            words=("ba", "de", "fi", "go"),
        )


@dataclass(frozen=True)
class Question:
    """One question: ``ask`` draws its arguments."""

    name: str
    method: str
    """of ``tokenpaths.frontend.api.client.Client``"""
    views: str
    ask: Callable[[np.random.Generator, About], Asked]
    free: bool = False
    """no summary can answer it: any tokens that pass somewhere, any words"""
    family: str | None = None
    """the only family of models whose page asks it"""


def _sample(rng: np.random.Generator, about: About) -> int:
    return int(rng.integers(about.num_samples))


def _rank(rng: np.random.Generator, about: About) -> int:
    """A frequent path more likely than a rare one: evenly in the logarithm of the rank."""
    return int(np.exp(rng.uniform(0, np.log(about.num_paths))).clip(1, about.num_paths))


def _label(rng: np.random.Generator, about: About) -> str:
    return about.labels[int(rng.integers(len(about.labels)))]


def _through(rng: np.random.Generator, about: About, points: int = 1) -> str:
    steps = np.sort(rng.choice(about.num_steps, points, replace=False))
    return ",".join(f"{step}.{about.modules[int(rng.integers(len(about.modules)))]}" for step in steps)


def _step(rng: np.random.Generator, about: About) -> int:
    return int(rng.integers(about.num_steps))


def _fixed(path: str, **query: Any) -> Callable[[np.random.Generator, About], Asked]:
    return lambda rng, about: (path, dict(query))


def _of_label(path: str, **query: Any) -> Callable[[np.random.Generator, About], Asked]:
    return lambda rng, about: (path, {**query, "label": _label(rng, about)})


QUESTIONS: tuple[Question, ...] = (
    Question("details", "info", "all", _fixed("")),
    Question("flow", "flow", "flow, runs, sample", _fixed("/flow", limit=2000)),
    Question("flow of a label", "flow", "flow, compare", _of_label("/flow", limit=2000)),
    Question("flow of merged modules", "flow", "flow", _fixed("/flow", limit=2000, merge_share=0.02)),
    Question("flow of some steps", "flow", "flow", _fixed("/flow", steps="2:7", min_share=0.001)),
    Question("usage", "usage", "modules, experts", _fixed("/usage")),
    Question("usage of a label", "usage", "modules, experts", _of_label("/usage")),
    Question("rank and frequency", "fit", "paths", _fixed("/paths/fit")),
    Question("paths by rank", "paths", "paths", _fixed("/paths", limit=100)),
    Question("1000 paths by rank", "paths", "dipaco", _fixed("/paths", limit=1000)),
    Question("paths of a label", "paths", "paths", _of_label("/paths", limit=100)),
    Question("paths by compute", "paths", "paths", _fixed("/paths", limit=100, order="compute")),
    Question("paths by reuse", "paths", "paths", _fixed("/paths", limit=100, order="reuse")),
    Question(
        "12 examples of a path", "examples", "home", lambda r, a: (f"/paths/{_rank(r, a)}/examples", {"limit": 12})
    ),
    Question("samples", "samples", "sample, compute", _fixed("/samples", limit=100)),
    Question("samples of a label", "samples", "sample, compute", _of_label("/samples", limit=100)),
    Question(
        "samples of a label by compute",
        "samples",
        "compute",
        _of_label("/samples", limit=8, order="compute", descending="true"),
    ),
    Question("samples by reuse", "samples", "compute", _fixed("/samples", limit=500, order="reuse", descending="true")),
    Question("samples by loss", "samples", "compute", _fixed("/samples", limit=100, order="loss", descending="true")),
    Question("one sample", "sample", "sample, flow, detour", lambda r, a: (f"/samples/{_sample(r, a)}", {})),
    Question(
        "tokens × modules",
        "token_slice",
        "experts",
        lambda r, a: (f"/samples/{_sample(r, a)}/experts", {"step": _step(r, a), "limit": 40}),
    ),
    Question("compute per sample", "distribution", "compute", _fixed("/distributions/compute", per="sample", bins=40)),
    Question(
        "compute per sample of a label",
        "distribution",
        "compute",
        _of_label("/distributions/compute", per="sample", bins=40),
    ),
    Question("compute per token", "distribution", "compute", _fixed("/distributions/compute", per="token", bins=40)),
    Question("reuse per token", "distribution", "compute", _fixed("/distributions/reuse", per="token", bins=40)),
    Question("loss per sample", "distribution", "compute", _fixed("/distributions/loss", per="sample", bins=40)),
    Question("loss per token", "distribution", "compute", _fixed("/distributions/loss", per="token", bins=40)),
    Question(
        "gate entropy per sample",
        "distribution",
        "compute",
        _fixed("/distributions/gate_entropy", per="sample", bins=40),
    ),
    Question(
        "gate entropy per token", "distribution", "compute", _fixed("/distributions/gate_entropy", per="token", bins=40)
    ),
    Question(
        "reuse per token of a label", "distribution", "compute", _of_label("/distributions/reuse", per="token", bins=40)
    ),
    Question(
        "loss per token of a label", "distribution", "compute", _of_label("/distributions/loss", per="token", bins=40)
    ),
    Question("tables", "tables", "export", _fixed("/export")),
    Question(
        "labels of modules",
        "specialisation",
        "experts, module",
        lambda r, a: ("/specialisation", {"of": "label", "step": _step(r, a), "limit": 256}),
    ),
    Question(
        "words of modules",
        "specialisation",
        "experts, module",
        lambda r, a: ("/specialisation", {"of": "input", "step": _step(r, a), "limit": 256, "each": 24}),
    ),
    Question("repetition", "repetition", "experts", _fixed("/repetition")),
    Question("repetition of a label", "repetition", "experts", _of_label("/repetition"), family="moe"),
    Question("what paths know", "knowledge", "paths", _fixed("/paths/knowledge")),
    Question("likeness of a path's tokens", "alikeness", "paths", _fixed("/paths/alikeness")),
    Question("loss beside compute", "outcomes", "compute", _fixed("/outcomes/compute", per="sample")),
    Question("loss beside compute, of a label", "outcomes", "compute", _of_label("/outcomes/compute", per="sample")),
    Question(
        "loss of tokens beside compute, of a label", "outcomes", "compute", _of_label("/outcomes/compute", per="token")
    ),
    Question(
        "loss beside modules visited, of a label", "outcomes", "compute", _of_label("/outcomes/modules", per="sample")
    ),
    Question("compute by kind of token", "kind_means", "compute", _fixed("/means/compute")),
    Question("reuse beside skip", "skip_and_reuse", "compute", _fixed("/skip_and_reuse")),
    Question("reuse beside skip, of a label", "skip_and_reuse", "compute", _of_label("/skip_and_reuse")),
    Question("kinds of modules by step", "module_kinds", "modules", _fixed("/usage/kinds")),
    Question("kinds of modules of a label", "module_kinds", "modules", _of_label("/usage/kinds")),
    Question("paths specific to labels", "specific", "paths", _fixed("/specific", of="path", limit=20)),
    Question("modules specific to labels", "specific", "paths", _fixed("/specific", of="module", limit=20)),
    Question("paths specific to one label", "specific", "paths", _of_label("/specific", of="path", limit=20)),
    Question("modules specific to one label", "specific", "paths", _of_label("/specific", of="module", limit=20)),
    Question(
        "tokens with a word",
        "search_tokens",
        "paths",
        lambda r, a: ("/tokens/search", {"q": a.words[int(r.integers(len(a.words)))], "limit": 20, "examples": 30}),
    ),
    Question("summaries of modules", "summaries", "flow, modules", _fixed("/summaries", of="module")),
    Question("one module in full", "module", "inspector", lambda r, a: (f"/modules/{_through(r, a)}", {})),
    Question("one path in full", "path", "inspector", lambda r, a: (f"/paths/{_rank(r, a)}", {})),
    Question("how close decisions were", "margins", "modules", _fixed("/margins")),
    Question("how close decisions of a label were", "margins", "modules", _of_label("/margins")),
    Question("samples on the plane", "map", "compare", _fixed("/map", limit=1000, thumbnails="true")),
    Question(
        "similar samples",
        "similar_samples",
        "compare",
        lambda r, a: (f"/samples/{_sample(r, a)}/similar", {"limit": 12}),
    ),
    Question(
        "similar ribbons",
        "similar_tokens",
        "compare",
        lambda r, a: ("/tokens/similar", {"sample": _sample(r, a), "token": 0, "limit": 6, "each": 4}),
    ),
    Question("power law", "law", "paths", _fixed("/paths/law", draws=0)),
    Question("goodness of its fit", "law", "paths", _fixed("/paths/law")),
    Question("slopes at equal sizes", "slopes", "paths", _fixed("/paths/slopes")),
    Question(
        "flow through a module",
        "flow",
        "flow, module",
        lambda r, a: ("/flow", {"limit": 2000, "through": _through(r, a)}),
        free=True,
    ),
    Question(
        "flow through two modules",
        "flow",
        "flow",
        lambda r, a: ("/flow", {"limit": 2000, "through": _through(r, a, 2)}),
        free=True,
    ),
    Question(
        "flow of a label through a module",
        "flow",
        "flow",
        lambda r, a: ("/flow", {"limit": 2000, "label": _label(r, a), "through": _through(r, a)}),
        free=True,
    ),
    Question(
        "flow of some paths",
        "flow",
        "flow, paths",
        lambda r, a: ("/flow", {"limit": 2000, "paths": f"{_rank(r, a)},1,2"}),
        free=True,
    ),
    Question(
        "paths through a module",
        "paths",
        "paths",
        lambda r, a: ("/paths", {"limit": 100, "through": _through(r, a)}),
        free=True,
    ),
    Question(
        "paths of a label through a module",
        "paths",
        "paths",
        lambda r, a: ("/paths", {"limit": 100, "label": _label(r, a), "through": _through(r, a)}),
        free=True,
    ),
    Question(
        "samples with a word",
        "samples",
        "sample",
        lambda r, a: ("/samples", {"limit": 100, "q": a.words[int(r.integers(len(a.words)))]}),
        free=True,
    ),
)

NOT_MEASURED = {
    "runs": "the list of runs: it grows with the number of runs, not of tokens",
    "delete": "changes the folder",
    "problems": "of the processes",
    "models": "of models",
    "model": "of models",
    "place_model": "of models",
    "trace": "runs a model",
    "jobs": "of jobs",
    "job": "of jobs",
    "submit_job": "of jobs",
    "cancel_job": "of jobs",
    "retry_job": "of jobs",
    "remove_job": "of jobs",
    "artifact": "of jobs",
    "searches": "saved addresses",
    "save_search": "saved addresses",
    "delete_search": "saved addresses",
    "export": "a whole table as a file",
    "export_url": "asks nothing",
    "report": "the whole run as a file",
    "image": "pictures only; this run has texts",
    "soft": "runs of soft routers only",
    "co_activation": "runs with k > 1 only",
    "last_tokens": "not on the page yet",
    "compare": "two runs",
    "compare_runs": "any number of runs",
    "names": "the user's names, beside the run",
    "save_name": "the user's names, beside the run",
    "delete_name": "the user's names, beside the run",
    "import_names": "the user's names, beside the run",
    "export_names": "the user's names, beside the run",
    "put_into_inbox": "changes the folder",
    "put_into_series": "changes the folder",
    "received": "what engines have sent",
    "seal_received": "what engines have sent",
    "load_over_time": "runs of counts only",
    "balance_over_time": "runs of counts only",
    "load_by_label": "runs of counts only",
    "compare_load": "two runs",
    "agreement": "two runs",
    "sample_agreement": "two runs",
    "same_groups": "two runs",
}
"""methods of ``Client`` that ask nothing of one large run of texts, and why"""
