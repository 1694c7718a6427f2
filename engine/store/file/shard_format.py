"""Format of a shard: one worker's part of a run, a folder of Parquet files with a manifest of SHA-256 sums.

    <shards>/<run>/0003-of-0008/   token.parquet  sample.parquet  batch.parquet  [edge, gate, block, twin].parquet
                                   about.json     manifest.json

``token`` and ``sample`` hold the store's columns except those that are numbered at sealing; ``sample`` counts from 0 in
every shard. ``batch`` records how samples were cut into batches, which sealing repeats; ``twin`` holds the ribbons of
the untrained twin in the order of tokens. ``about.json`` is the run's description, byte-identical in all shards.
Parquet readers do not detect every flipped byte; the SHA-256 in the manifest do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo, RunInfo

MANIFEST, ABOUT = "manifest.json", "about.json"
TABLES = ("token", "sample", "batch", "edge", "gate", "block", "twin")
_MOST_SHARDS = 9999
_MOST_MANIFEST_BYTES = 4 * 2**20
_HASH_BYTES = 2**22


class ShardError(UserError):
    """A shard, or a set of shards, that cannot be made a run."""


@dataclass(frozen=True)
class Shard:
    """The part of a data set that a worker traces, and the settings besides the model that determine its numbers."""

    shard: int
    """1 … ``of``"""
    of: int
    first: int
    """rows [first, stop) of the ``places`` requested rows"""
    stop: int
    places: int
    dataset_sha256: str
    options: dict[str, Any] = field(default_factory=dict)
    """batch size and similar: must be equal for all shards of a run"""
    made_with: dict[str, Any] = field(default_factory=dict)
    """device and library versions: may differ, but then rounding differs between shards"""

    @property
    def name(self) -> str:
        return f"{self.shard:04d}-of-{self.of:04d}"


class FileEntry(BaseModel):
    """One file of a shard."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rows: int
    bytes: int
    sha256: str


class Remark(BaseModel):
    """Something that was changed of samples (see ``tokenpaths.engine.data.labels.Remarks``)."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    count: int
    first: str


class Manifest(BaseModel):
    """Description of a finished shard; written last."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal[1] = 1
    run: str
    model: str
    checkpoint_sha256: str
    dataset: str
    split: str
    dataset_sha256: str
    options: dict[str, Any]
    shard: int
    of: int
    first: int
    stop: int
    places: int
    samples: int
    tokens: int
    left_out: int
    problems: list[str]
    remarks: list[Remark]
    shapes: dict[str, list[int]]
    """edges, gates, blocks -> axis lengths, if the family has them"""
    files: dict[str, FileEntry]
    made_with: dict[str, Any]
    engine_version: str
    schema_version: int
    created_at: str
    seconds: float

    @property
    def name(self) -> str:
        """Display name for messages."""
        return f"shard {self.shard} of {self.of}"


def parse_shard(text: str) -> tuple[int, int]:
    """``3/8`` as (3, 8).

    Raises:
        UserError: anything else.
    """
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text.strip())
    shard, of = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= shard <= of:
        raise UserError(
            f"{text[:20]!r} is no shard: write i/N with 1 ≤ i ≤ N ≤ {_MOST_SHARDS}, for example 3/8", field="shard"
        )
    return shard, of


def about_bytes(info: RunInfo, modules: Sequence[ModuleInfo]) -> bytes:
    """Content of ``about.json``: the run's description in storage order."""
    about = {"info": asdict(info), "modules": [asdict(module) for module in modules]}
    return json.dumps(about, ensure_ascii=False, allow_nan=False, indent=1).encode()


def read_about(folder: Path) -> tuple[RunInfo, list[ModuleInfo]]:
    """Parse the description written by ``about_bytes``."""
    about = json.loads((folder / ABOUT).read_bytes())
    info = about["info"]
    info["token_texts"] = {int(token_id): text for token_id, text in info["token_texts"].items()}
    info["axes"] = {axis: tuple(names) for axis, names in info["axes"].items()}
    info["regions"] = tuple(info["regions"])
    return RunInfo(**info), [ModuleInfo(**module) for module in about["modules"]]


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest with the SHA-256 of its other content."""
    body = manifest.model_dump(mode="json")
    return json.dumps({"sha256": _body_sha256(body), **body}, ensure_ascii=False, allow_nan=False, indent=1).encode()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a shard's folder.

    Raises:
        ShardError: it is missing or was altered.
    """
    file = folder / MANIFEST
    again = "copy the shard again, or trace it again"
    try:
        with open(file, "rb") as opened:
            body = json.loads(opened.read(_MOST_MANIFEST_BYTES).decode())
        declared = body.pop("sha256")
    except FileNotFoundError:
        raise ShardError(f"{folder} has no {MANIFEST}, so it is no finished shard: {again}", field="shards") from None
    except OSError as error:
        raise ShardError(f"{file} cannot be read ({error.strerror or error}): {again}", field="shards") from error
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ShardError(f"{file} is damaged (no manifest in JSON): {again}", field="shards") from error
    if body.get("format") != 1:
        raise ShardError(
            f"{file} has format {str(body.get('format'))[:20]}, this program reads format 1: update it", field="shards"
        )
    if declared != _body_sha256(body):
        raise ShardError(f"{file} is damaged (its own SHA-256 does not fit): {again}", field="shards")
    try:
        manifest = Manifest.model_validate(body)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ShardError(f"{file} is no manifest of a shard ({where}): {again}", field="shards") from error
    if strange := set(manifest.files) - {ABOUT, *(f"{table}.parquet" for table in TABLES)}:
        raise ShardError(f"{file} lists a file {min(strange)[:80]!r} that no shard has: {again}", field="shards")
    return manifest


def check_sums(folder: Path, manifest: Manifest, on_bytes: Callable[[int], None] = lambda more: None) -> None:
    """Compare every file with its size and SHA-256; ``on_bytes`` is called with the number of further bytes read.

    Raises:
        ShardError: a file is missing, or its length or content differs.
    """
    again = f"copy {manifest.name} again, or trace it again with --shard {manifest.shard}/{manifest.of} --overwrite"
    for name, entry in manifest.files.items():
        file = folder / name
        try:
            size = file.stat().st_size
            if size != entry.bytes:
                raise ShardError(
                    f"{file} has {size:,} bytes, its manifest says {entry.bytes:,}: {again}", field="shards"
                )
            digest = hashlib.sha256()
            with open(file, "rb") as opened:
                while part := opened.read(_HASH_BYTES):
                    digest.update(part)
                    on_bytes(len(part))
        except FileNotFoundError:
            raise ShardError(f"{file} is missing: {again}", field="shards") from None
        except OSError as error:
            raise ShardError(f"{file} cannot be read ({error.strerror or error}): {again}", field="shards") from error
        if digest.hexdigest() != entry.sha256:
            raise ShardError(f"{file} is damaged (its SHA-256 is not that of the manifest): {again}", field="shards")


def finished_shard(
    folder: Path, info: RunInfo, modules: Sequence[ModuleInfo], shard: Shard
) -> tuple[Manifest | None, str]:
    """The manifest of ``shard`` if it is already traced, complete and identical, else None; and the problem, if any.

    Raises:
        ShardError: such a shard exists for another model, data set or number of rows.
    """
    place = folder / shard.name
    if not place.exists():
        return None, ""
    try:
        manifest = read_manifest(place)
        check_sums(place, manifest)
    except ShardError as error:
        return None, str(error)
    entry = manifest.files.get(ABOUT)
    for what, there, here in (
        ("another model", manifest.model, info.model),
        ("another checkpoint", manifest.checkpoint_sha256, info.checkpoint_sha256),
        ("another data set", manifest.dataset_sha256, shard.dataset_sha256),
        ("other rows", (manifest.first, manifest.stop, manifest.places), (shard.first, shard.stop, shard.places)),
        ("other options", manifest.options, shard.options),
        ("another description", entry and entry.sha256, hashlib.sha256(about_bytes(info, modules)).hexdigest()),
    ):
        if there != here:
            raise ShardError(
                f"{manifest.name} of run {info.run_id!r} is there already, of {what}: give another --run, or "
                "--overwrite",
                field="shard",
            )
    return manifest, ""


def _body_sha256(body: dict[str, Any]) -> str:
    text = json.dumps(body, ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
