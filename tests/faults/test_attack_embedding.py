"""Other web sites that embed what the API answers, instead of linking to it."""

from __future__ import annotations

import itertools

from tests.backend.conftest import API, Served
from tests.faults.conftest import Keep

SITES = ("cross-site", "same-site", "unheard-of")
EMBEDDED = ("iframe", "frame", "object", "embed", "fencedframe", "image", "script", "style", "video", "empty", "report")
PATHS = (
    "/runs",
    "/runs/vision/export/token.csv",
    "/runs/vision/report",
    "/runs/vision/samples/0/image",
    "/runs/nothing",
)


def test_nothing_can_be_embedded_by_other_sites(api: Served, figure: Keep) -> None:
    """Every destination but a document, from other sites and other ports, with each way of fetching, GET and HEAD"""
    refused = 0
    for method, site, target, path in itertools.product(("GET", "HEAD"), SITES, EMBEDDED, PATHS):
        for mode in ("navigate", "no-cors", "cors"):
            headers = {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": target}
            answer = api.client.request(method, API + path, headers=headers)
            assert answer.status_code == 403, (method, path, headers)
            assert "content-disposition" not in answer.headers
            refused += 1
    for site in SITES:  # a link, as before
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert api.get("/runs", headers=headers).status_code == 200
    figure(38, f"{refused} of {refused} embedded reads 403; links 200")
