"""What killed processes leave in a data folder, and when it is deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.backend.conftest import api_for
from tokenpaths.backend.jobs import files
from tokenpaths.backend.jobs.table import JobTable


def test_what_killed_processes_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    old = time.time() - files.ABANDONED_SECONDS - 60
    gone, kept = ["inbox/.log.x1.tmp", ".state.x2.tmp"], ["inbox/log.tmp", "inbox/.hidden", "run_names/.r.x3.tmp"]
    for name in (*gone, *kept):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x")
        if not name.startswith("run_names"):  # that one may be written now
            os.utime(file, (old, old))
    for folder in ("jobs/.dream-1.ab12.removed", "jobs/dream-2"):  # of the other one the list of jobs may be lost
        (tmp_path / folder / "artifacts").mkdir(parents=True)
    with api_for(tmp_path):
        assert [name for name in (*gone, *kept) if not (tmp_path / name).exists()] == gone
        assert os.listdir(tmp_path / "jobs") == ["dream-2"]


def test_a_job_is_removed_with_its_files_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with api_for(tmp_path) as served:
        table = served.app.state.services.jobs.table
        job = table.submit("count", {}).job
        table.cancel(job)
        (tmp_path / "jobs" / job / "artifacts").mkdir(parents=True)

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("tokenpaths.backend.jobs.service.set_aside", killed)
            with pytest.raises(KeyboardInterrupt):
                served.app.state.services.jobs.remove(job)
        assert isinstance(table, JobTable)
        assert table.get(job).state == "cancelled"
        served.app.state.services.jobs.remove(job)
        assert table.page() == []
        assert os.listdir(tmp_path / "jobs") == []
