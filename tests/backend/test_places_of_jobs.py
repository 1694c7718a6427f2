"""What came out of a job does not say where the data folder lies either."""

from __future__ import annotations

from PIL import Image

from tests.backend.conftest import API, Served
from tests.support.jobs_over_rest import events_of, until


def test_pictures_that_were_left_out_are_named_without_their_folder(working: Served) -> None:
    pictures = working.settings.data_dir / "inbox" / "pictures"
    pictures.mkdir(parents=True)
    Image.new("RGB", (32, 32), (90, 10, 10)).save(pictures / "a.png")
    (pictures / "b.png").write_bytes(b"nothing")
    wanted = {"model": "tiny-vision", "data": "pictures", "twin": False, "skip_bad": True}
    answer = working.client.post(f"{API}/jobs", json={"kind": "trace", "request": wanted})
    assert answer.status_code == 202, answer.text
    job = answer.json()["job"]
    found = until(working, job, "succeeded", "failed")
    assert found["result"]["left_out"] == 1
    assert "b.png" in found["result"]["problems"][0]
    asked = [working.get(path) for path in (f"/jobs/{job}", "/jobs", f"/runs/{found['result']['run']}")]
    asked.append(working.get(f"/jobs/{job}/events"))
    assert "b.png" in str(events_of(asked[-1].text))
    assert not [answer.url for answer in asked if str(working.settings.data_dir) in answer.text]
