"""Data folder, file names, durable atomic writes, free disk space and lock files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tokenpaths.engine.base.errors import Held, UserError
from tokenpaths.settings_file import default_data_dir, folder_setting

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
RUN_SUFFIX = ".duckdb"
PROGRAM_DIR = Path(__file__).resolve().parents[2]
"""the folder that holds ``engine`` and ``data``: of a clone, or ``tokenpaths`` of an installation"""
SHIPPED_MODELS = PROGRAM_DIR / "data" / "models"
# Windows opens a device under these names, whatever the folder and the suffix.
_DEVICE_NAMES = {"con", "prn", "aux", "nul", *(f"{d}{i}" for d in ("com", "lpt") for i in range(1, 10))}


def is_name(name: str) -> bool:
    """True for names that are safe as a file name on every system and inside an address."""
    return re.fullmatch(NAME_PATTERN[1:-1], name) is not None and name.lower() not in _DEVICE_NAMES


def printable_name(name: str) -> str:
    """A file name as text that can be sent and printed: bytes that are no UTF-8 are written as ``\\xe9``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def check_name(name: str, what: str = "run id", *, field: str | None = None) -> str:
    """``name`` itself when it may become a file name; otherwise UserError that says what may."""
    if not is_name(name):
        raise UserError(
            f"{name[:80]!r} is no {what}: use 1 to 64 letters, digits, - and _, starting with a letter or digit",
            field=field,
        )
    return name


def data_dir(flag: str | os.PathLike[str] | None = None) -> Path:
    """The folder for runs and jobs: the flag, else the setting ``data_dir``, else the user's data folder.

    Raises:
        UserError: The settings file cannot be read, or gives no folder.
    """
    if flag:
        return Path(flag).expanduser()
    return folder_setting("data_dir") or default_data_dir()


def runs_dir(folder: str | os.PathLike[str] | None = None) -> Path:
    """Folder of the run files inside the data folder; not created."""
    return data_dir(folder) / "runs"


def run_file(folder: Path, run_id: str) -> Path:
    """Address of the run file of ``run_id`` in ``folder``; UserError when it is no name."""
    return folder / f"{check_name(run_id, field='run')}{RUN_SUFFIX}"


def partial_file(folder: Path, run_id: str) -> Path:
    """Where the run ``run_id`` is written until it is complete: hidden from readers."""
    return folder / f".{check_name(run_id, field='run')}.partial"


def series_file(run: Path) -> Path:
    """Where a data folder keeps what a user said of the series of the run file ``run``, or of its copy."""
    return run.parent.parent / "run_series" / f"{run.stem}.json"


def fsync_file(file: Path) -> None:
    """Return once the bytes of ``file`` are on the disk."""
    # Windows syncs only handles that may write.
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Return once the names in ``folder`` are on the disk; does nothing where folders cannot be synced."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(source: Path, target: Path) -> None:
    """Sync ``source``, then put it in the place of ``target`` in one step that survives power loss."""
    fsync_file(source)
    os.replace(source, target)
    fsync_folder(target.parent)


def replace_folder(source: Path, target: Path) -> None:
    """Put the folder ``source`` in the place of ``target``; a crash between leaves what ``restore_folder`` mends."""
    aside = _aside(target)
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        os.replace(target, aside)  # a folder that is not empty cannot be replaced in one step
    os.replace(source, target)
    fsync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def restore_folder(target: Path) -> None:
    """Undo a ``replace_folder`` that was killed halfway: the old folder is back, or it is gone for good."""
    aside = _aside(target)
    if aside.exists() and not target.exists():
        os.replace(aside, target)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")


_never_made: list[Path] = []


def never_make(folder: Path) -> None:
    """From now on, ``make_folder`` makes nothing inside ``folder`` while that is gone (moved, deleted, unmounted)."""
    _never_made.append(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; FileNotFoundError inside a folder of ``never_make`` that is gone."""
    for gone in _never_made:
        if folder.is_relative_to(gone) and not gone.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(gone))
    folder.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``target``; it takes the place of ``target`` if the block succeeds."""
    with _temporary_file(target) as temporary_file:
        yield temporary_file
        rename_durably(temporary_file, target)


@contextlib.contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """An empty file beside ``target``, deleted in the end where it is still there."""
    make_folder(target.parent)
    temporary_file = _unused_beside(target)
    os.close(os.open(temporary_file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
    try:
        yield temporary_file
    finally:
        temporary_file.unlink(missing_ok=True)


def temporary_folder_beside(target: Path) -> Path:
    """A new hidden folder beside ``target``, to be renamed to it; who may read it is as for any folder the user makes.

    ``tempfile`` would shut out everybody else, and a fixed mode let in those whom the umask keeps out.
    """
    folder = _unused_beside(target)
    folder.mkdir()
    return folder


def _unused_beside(target: Path) -> Path:
    return target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``target``; it takes its place if the block succeeds, else it is removed.

    Raises:
        FileExistsError: ``target`` is a file, or a folder that holds something.
    """
    make_folder(target.parent)
    if target.is_symlink() or target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, "it is there already", str(target))
    temporary_folder = temporary_folder_beside(target)
    try:
        yield temporary_folder
        fsync_folder(temporary_folder)
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()
        os.replace(temporary_folder, target)
        fsync_folder(target.parent)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def write_new(target: Path, content: bytes) -> None:
    """Make ``target`` with ``content`` in one step; FileExistsError where anything has its name, a broken link too."""
    with _temporary_file(target) as temporary_file:
        temporary_file.write_bytes(content)
        fsync_file(temporary_file)
        try:
            os.link(temporary_file, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: the name is taken first
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            os.replace(temporary_file, target)
        fsync_folder(target.parent)


def write_atomically(target: Path, content: bytes) -> None:
    """Replace ``target`` by ``content``; readers see the old bytes or the new ones, never a part."""
    with atomic_file(target) as temporary_file:
        temporary_file.write_bytes(content)


class NearlyFull(OSError):
    """So little space is left that the rest is kept for whoever has to clean up."""

    def __init__(self, folder: Path, free: int, least: int, needed: int = 0) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.folder, self.free, self.least, self.needed = folder, free, least, needed

    def __str__(self) -> str:
        needed = f"{self.needed / 1e6:,.0f} MB are to be written, and " if self.needed else ""
        return (
            f"the disk of {self.folder} is nearly full: {self.free / 1e6:,.0f} MB are free, {needed or 'and '}writing "
            f"stops below {self.least / 1e6:,.0f} MB (least_free_megabytes); free some space"
        )


_least_free = [64_000_000]


def keep_free(num_bytes: int | float) -> None:
    """From now on, writers of this process stop before less than so much is free."""
    _least_free[0] = int(num_bytes)


def kept_free() -> int:
    """Bytes that writers of this process keep free."""
    return _least_free[0]


def check_free(folder: Path, needed: int = 0) -> None:
    """NearlyFull where less is free on the disk of ``folder`` than is to be kept free beside ``needed`` bytes."""
    free, least = shutil.disk_usage(folder).free, _least_free[0]
    if free < least + needed:
        raise NearlyFull(folder, free, least, needed)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether ``error``, or what caused it, is that no space (or quota) is left on the disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # DuckDB, SQLite and Arrow put the system's sentence into errors of their own; ours may quote a person.
        words = (os.strerror(errno.ENOSPC), "database or disk is full")
        if not isinstance(error, UserError) and any(phrase in str(error) for phrase in words):
            return True
        error = error.__cause__
    return False


class HolderLock:
    """A lock file that names its holder and frees itself when that process dies, however it dies.

    On systems without ``fcntl`` it only writes the name.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock at once, or raise Held with the id of the process that has it."""
        while True:
            descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                _lock(descriptor)
            except OSError:
                holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
                os.close(descriptor)
                raise Held(f"{self.file.name} is held by process {holder}: wait for it, or use another name") from None
            # The last holder may have deleted the name between our open and our lock.
            if self.file.exists() and os.fstat(descriptor).st_ino == self.file.stat().st_ino:
                self._descriptor = descriptor
                try:
                    os.truncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                except OSError:  # a full disk: leave no file behind that nobody holds
                    self.release()
                    raise
                return
            os.close(descriptor)

    def release(self) -> None:
        """Delete the lock file and free the lock; safe to call twice."""
        if self._descriptor is not None:
            if os.name != "nt":
                self.file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
            if os.name == "nt":
                self.file.unlink(missing_ok=True)


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def check_rereadable(path: Path, what: str) -> None:
    """Refuse pipes and devices: ``what`` they would be is read several times, and in another process.

    Raises:
        UserError: neither a file nor a folder is there; what does not exist at all is another's to refuse.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(
            f"{path}: is a pipe or a device; {what} is read twice, so save what it gives to a file first", field="file"
        )
