"""Edges, gates and blocks over REST."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backend.conftest import Serve, Served, problem
from tests.support.runs import make_soft
from tests.support.runs.soft import LABELS


def test_means_samples_and_labels_are_the_arrays(serve: Serve) -> None:
    served = serve()
    edges = np.random.default_rng(3).random((6, 2, 3, 3)).astype(np.float32)
    make_soft(edges=edges).write(served.runs_dir)
    everything = served.get("/runs/soft/edges")
    assert everything.headers["etag"]
    assert np.allclose(everything.json()["values"], edges.mean(axis=0), atol=1e-5)
    assert np.allclose(served.get("/runs/soft/edges?sample=4").json()["values"], edges[4], atol=1e-5)
    swahili = served.get("/runs/soft/edges?label=swahili").json()
    assert np.allclose(swahili["values"], edges[[label == "swahili" for label in LABELS]].mean(axis=0), atol=1e-5)
    assert [axis["axis"] for axis in swahili["axes"]] == ["iteration", "source", "target"]
    assert served.get("/runs/soft").json()["soft"] == ["edges"]
    problem(served.get("/runs/soft/edges?sample=6"), 404, "sample")
    problem(served.get("/runs/soft/edges?label=french"), 422, "label")
    assert "it has edges" in problem(served.get("/runs/soft/gates"), 404, "kind")["detail"]


@pytest.mark.parametrize("kind", ["edges", "gates", "blocks"])
def test_a_hard_run_says_where_its_decisions_are(api: Served, kind: str) -> None:
    assert "see flow and paths" in problem(api.get(f"/runs/vision/{kind}"), 404, "kind")["detail"]
