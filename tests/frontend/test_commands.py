"""Commands on the page name the data folder that the page shows, where it is not the usual one."""

from __future__ import annotations

import platformdirs
import pytest

from tokenpaths.frontend.page.commands import command, data_dir_option, runs_dir


@pytest.mark.parametrize(
    ("folder", "option"),
    [
        ("/data/runs of May", " --data-dir '/data/runs of May'"),
        ("/data/x", " --data-dir /data/x"),
        ("", ""),
        (platformdirs.user_data_dir("tokenpaths", False), ""),
        (platformdirs.user_data_dir("tokenpaths", False) + "/", ""),
    ],
)
def test_a_command_names_the_folder_that_is_not_the_usual_one(monkeypatch, folder, option):
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", folder)
    assert data_dir_option() == option
    assert command("tokenpaths jobs") == "tokenpaths jobs" + option
    assert runs_dir() == (f"{folder}/runs" if option else "")


def test_the_usual_folder_is_that_of_the_settings():
    from tokenpaths.settings_file import default_data_dir

    assert str(default_data_dir()) == platformdirs.user_data_dir("tokenpaths", False)
