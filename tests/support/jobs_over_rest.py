"""Jobs over REST as the tests drive them: submit, wait, cancel, listen."""

from __future__ import annotations

import json
import time
from typing import Any

from tests.backend.conftest import API, Served


def submit(served: Served, **request: Any) -> str:
    answer = served.client.post(f"{API}/jobs", json={"kind": "count", "request": request})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"{API}/jobs/{answer.json()['job']}"
    return str(answer.json()["job"])


def until(served: Served, job: str, *states: str) -> dict[str, Any]:
    """The job once it is in one of ``states``."""
    ends = time.monotonic() + 120
    while (card := served.get(f"/jobs/{job}").json())["state"] not in states:
        assert time.monotonic() < ends, card
        time.sleep(0.03)
    return card


def cancel(served: Served, job: str) -> None:
    served.client.delete(f"{API}/jobs/{job}")
    until(served, job, "cancelled", "succeeded", "failed")


def events_of(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """(id, event, data) of each event of a whole stream of server-sent events."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return events
