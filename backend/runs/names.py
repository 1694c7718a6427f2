"""The user's own names and notes of the things of a run: one JSON file a run in ``<data_dir>/names``.

A run file is sealed, so they stand beside it. The name of the file holds a sum of when the run was made: another run
that takes the name later does not inherit them, and a run that was deleted finds them again when it is restored.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import unicodedata
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.backend.http.strict_json import json_body
from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.files import check_name, write_atomically

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

FOLDER = "names"
MOST_NAMES = 2000
MOST_NAME, MOST_NOTE = 80, 4000
"""characters"""
MOST_BYTES, MOST_IMPORT_BYTES = 40_000, 8_000_000
MOST_DIGITS = 9
FIELDS = ("name", "note")
THING = "run, module:3.4 (step.module), path:12 (rank), sample:5 or token:5.17 (sample.token)"
Names = dict[str, dict[str, str]]
_NUMBERS = {"run": 0, "module": 2, "path": 1, "sample": 1, "token": 2}
_BIDIRECTIONAL = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_WRITING = threading.Lock()
"""one process writes a data folder (``services.folder``), from several threads"""


def names_file(data_dir: Path, run_id: str, created_at: str) -> Path:
    """Where the names of a run are; it need not exist."""
    made = hashlib.sha256(created_at.encode()).hexdigest()[:12]
    return data_dir / FOLDER / f"{check_name(run_id, field='run')}.{made}.json"


def read_names(file: Path) -> Names:
    """All names by thing; none without a file. Problem 409 if the file is damaged."""
    try:
        names = json.loads(file.read_bytes())["names"]
        if all(isinstance(entry[field], str) for entry in names.values() for field in (*FIELDS, "saved_at")):
            return dict(names)
        raise ValueError("it has another shape")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem(
            409, "names-damaged", f"The names of this run, names/{file.name}, cannot be read: move the file away."
        ) from error


def put_name(file: Path, thing: str, values: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Name one thing, replacing its name and note; returns the entry and whether it is new. Problem 409 when there are
    too many."""
    entry = {**values, "saved_at": _now()}

    def change(names: Names) -> bool:
        new = thing not in names
        if new and len(names) >= MOST_NAMES:
            message = f"This run has {MOST_NAMES:,} names already; delete some."
            raise Problem(409, "too-many", message, field="thing")
        names[thing] = entry
        return new

    return entry, _changed(file, change)


def put_names(file: Path, names: Mapping[str, Mapping[str, str]]) -> Names:
    """All names at once, in place of those that were there."""
    wanted = {thing: {"saved_at": _now(), **values} for thing, values in names.items()}
    with _WRITING:
        _write(file, wanted)
    return wanted


def delete_name(file: Path, thing: str) -> None:
    """Forget the name and note of a thing; Problem 404 if it has none."""

    def change(names: Names) -> None:
        if names.pop(thing, None) is None:
            raise Problem(404, "no-such-name", f"{thing} has no name and no note.", field="thing")

    _changed(file, change)


def _changed(file: Path, change: Callable[[Names], Any]) -> Any:
    with _WRITING:
        names = read_names(file)
        answer = change(names)
        _write(file, names)
    return answer


def _write(file: Path, names: Names) -> None:
    write_atomically(file, json.dumps({"names": names}, ensure_ascii=False, indent=1).encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_thing(thing: str) -> tuple[str, tuple[int, ...]]:
    """The kind and the numbers of a thing; Problem 422 where it is none."""
    kind, _, rest = thing.partition(":")
    numbers = rest.split(".") if rest else []
    sound = all(re.fullmatch(r"0|[1-9][0-9]*", number) and len(number) <= MOST_DIGITS for number in numbers)
    if _NUMBERS.get(kind) != len(numbers) or not sound or thing != kind + (":" + rest if rest else ""):
        raise Problem(422, "thing", f"{thing[:40]!r} is nothing that can be named; name {THING}.", field="thing")
    return kind, tuple(int(number) for number in numbers)


def check_there(run: Run, things: Mapping[str, Any]) -> str:
    """When the run was made; Problem 404 for things that it does not have."""
    for thing in things:
        kind, numbers = check_thing(thing)
        if not _is_there(run, kind, numbers):
            raise Problem(404, "no-such-thing", f"Run {run.run_id!r} has no {thing}.", field="thing")
    return str(run.row["created_at"])


def _is_there(run: Run, kind: str, numbers: tuple[int, ...]) -> bool:
    if kind == "module":
        return numbers[0] < run.layout.num_steps and numbers[1] in run.bank.offered(numbers[0])
    if run.load_only is not None:
        return kind == "run"
    if kind == "path":
        return 1 <= numbers[0] <= int(run.row["num_paths"])
    if kind in ("sample", "token"):
        ends = (*run.first_rows.tolist()[numbers[0] + 1 : numbers[0] + 2], int(run.row["num_tokens"]))
        inside = numbers[0] < int(run.row["num_samples"])
        return inside and (kind == "sample" or numbers[1] < ends[0] - int(run.first_rows[numbers[0]]))
    return True


def check_entry(data: bytes) -> dict[str, str]:
    """Parse and validate a body ``{"name": …, "note": …}``; Problem 422 with the name of the field."""
    return _entry(json_body(data), "The body")


def check_import(data: bytes) -> dict[str, dict[str, str]]:
    """Parse and validate what ``GET …/names`` gave; Problem 422 with the name of the field."""
    values = json_body(data)
    if not isinstance(values, dict) or not isinstance(values.get("names"), dict):
        raise Problem(422, "json", 'The body should be {"names": {…}}, as GET gives it.', field="names")
    if unknown := sorted(set(values) - {"run", "created_at", "names"}):
        raise Problem(422, "json", f"The body has {unknown[0][:40]!r}; it should have `names`.", field=unknown[0][:40])
    if len(values["names"]) > MOST_NAMES:
        message = f"`names` has {len(values['names']):,} entries, a run has at most {MOST_NAMES:,}."
        raise Problem(422, "names", message, field="names")
    checked = {}
    for thing, entry in values["names"].items():
        check_thing(thing)
        checked[thing] = _entry(entry, f"`names` of {thing}", saved_at=True)
    return checked


def _entry(values: Any, where: str, *, saved_at: bool = False) -> dict[str, str]:
    if not isinstance(values, dict) or set(values) - {*FIELDS, *(("saved_at",) if saved_at else ())}:
        raise Problem(422, "json", f'{where} should be {{"name": "…", "note": "…"}}.', field="name")
    entry = {field: values.get(field, "") for field in FIELDS}
    for field, most in (("name", MOST_NAME), ("note", MOST_NOTE)):
        text = entry[field]
        if not isinstance(text, str):
            raise Problem(422, field, f"{where}: `{field}` should be text.", field=field)
        if field == "note":
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        entry[field] = text = text.strip()
        if len(text) > most:
            message = f"{where}: `{field}` has {len(text):,} characters, at most {most:,} are kept."
            raise Problem(422, field, message, field=field)
        refused, allowed = (("Cc",), "\n\t") if field == "note" else (("Cc", "Zl", "Zp"), "")
        if any((unicodedata.category(c) in refused and c not in allowed) or c in _BIDIRECTIONAL for c in text):
            wanted = "give one line of text without them" if field == "name" else "give text without them"
            kinds = "control characters" if field == "note" else "control characters or line separators"
            message = f"{where}: `{field}` holds {kinds}; {wanted}."
            raise Problem(422, field, message, field=field)
    if not any(entry.values()):
        raise Problem(422, "name", f"{where} has neither `name` nor `note`; DELETE forgets both.", field="name")
    if saved_at and isinstance(values.get("saved_at"), str) and len(values["saved_at"]) <= 40:
        entry["saved_at"] = values["saved_at"]
    return entry
