"""Settings: where a value comes from, what is refused, and that the page about them is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.conftest import TOKEN
from tokenpaths.backend.settings import Settings, load_settings, settings_markdown
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import data_dir

ROOT = Path(__file__).resolve().parent.parent.parent


def test_page_is_up_to_date() -> None:
    """Refresh with: python -m tokenpaths.backend.settings > docs/settings.md"""
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_markdown()


def test_every_setting_says_what_it_does() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert len(field.description) > 15, name


def test_flag_beats_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("port = 1003\npage_port = 2003\nquery_slots = 3\n")
    monkeypatch.setenv("TOKENPATHS_PORT", "1002")
    monkeypatch.setenv("TOKENPATHS_PAGE_PORT", "2002")
    settings = load_settings(file, port=1001)
    assert (settings.port, settings.page_port, settings.query_slots) == (1001, 2002, 3)
    assert settings.export_slots == Settings.model_fields["export_slots"].default
    monkeypatch.setenv("TOKENPATHS_SETTINGS_FILE", str(file))
    assert load_settings().query_slots == 3
    assert load_settings(port=None).port == 1002


def test_default_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tokenpaths.settings_file.default_settings_file", lambda: tmp_path / "settings.toml")
    assert load_settings().port == 8000
    (tmp_path / "settings.toml").write_text("port = 1234\n")
    assert load_settings().port == 1234


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("prot = 1\n", "prot", "did you mean `port`"),
        ("port = 'many'\n", "port", "given 'many'"),
        ("port = 70000\n", "port", "70000"),
        ("log_level = 'LOUD'\n", "log_level", "LOUD"),
        ("port = \n", "settings_file", "cannot be read"),
        ("data_dir = ''\n", "data_dir", "name a folder"),
        ("huggingface_dir = ' '\n", "huggingface_dir", "name a folder"),
    ],
)
def test_wrong_files_are_explained(tmp_path: Path, text: str, field: str, message: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_settings(file)
    assert caught.value.field == field


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"data_dir = '{tmp_path}'\n")
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", "")
    assert load_settings(file).data_dir == tmp_path
    assert load_settings().data_dir == data_dir() != Path.cwd()


def test_a_variable_that_is_no_setting_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("PROT", "MODELS_DIR", "API_URL", "SETTINGS_FILE", "PORT"):
        monkeypatch.setenv(f"TOKENPATHS_{name}", "9" if name == "PORT" else "")
    assert load_settings().port == load_settings().port == 9
    assert [record.getMessage() for record in caplog.records] == [
        f"The environment variable TOKENPATHS_{given} is no setting and has no effect; did you mean TOKENPATHS_{meant}?"
        for given, meant in (("MODELS_DIR", "MODELS_DIRS"), ("PROT", "PORT"))
    ]


def test_missing_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_settings(tmp_path / "nothing.toml")


def test_short_token_is_refused_without_being_shown() -> None:
    with pytest.raises(UserError, match="16") as caught:
        load_settings(token="hunter2")
    assert "hunter2" not in str(caught.value)


def test_secrets_do_not_show() -> None:
    settings = load_settings(token=TOKEN, worker_secret="another-long-secret")
    assert TOKEN not in repr(settings)
    assert "another-long-secret" not in str(settings)


def test_lists_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    monkeypatch.setenv("TOKENPATHS_MODELS_DIRS", os.pathsep.join(["/a", "/b"]))
    monkeypatch.setenv("TOKENPATHS_ALLOWED_HOSTS", "one.example two.example")
    settings = load_settings(data_dir=tmp_path)
    assert settings.models_dirs == (Path("/a"), Path("/b"))
    assert settings.allowed_hosts == ("one.example", "two.example")
    assert settings.all_models_dirs[0] == tmp_path / "models"
    assert settings.all_models_dirs[-1].parts[-2:] == ("data", "models")
