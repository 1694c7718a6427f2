"""Passages of texts that ship with Python, labelled by kind: documentation, docstrings, code, legal, poem.

documentation: chapters of the language reference (``pydoc_data.topics``); docstrings and code: of standard modules,
read as text and never imported; legal: Python's licence, then licences of pinned packages; poem: the Zen of Python.
Nothing is copied into this repository: passages are the same on machines with the same versions of Python and of these
packages.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Final

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.passages import cut_passages
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

SHORTEST: Final = 800
LONGEST: Final = 2000
NUM_PASSAGES: Final = {"documentation": 45, "docstrings": 35, "code": 45, "legal": 24, "poem": 1}
PER_TEXT: Final = 3
"""passages of one chapter or module, so that many are heard"""

_TOPICS: Final = (
    "assert assignment attribute-access binary bltin-type-objects booleans calls class comparisons "
    "compound context-managers customization debugger dynamic-features execmodel exceptions for "
    "formatstrings function identifiers import lambda naming numeric-types objects raise sequence-types "
    "shifting slicings specialnames string-methods strings try types typesmapping typesseq while with "
    "yield"
)
_MODULES: Final = (
    "argparse ast bisect calendar cmd collections/__init__ colorsys configparser contextlib copy csv "
    "dataclasses datetime difflib dis email/message enum fractions functools graphlib gzip heapq "
    "html/parser http/client http/cookies inspect ipaddress json/decoder json/encoder logging/__init__ "
    "mailbox pathlib pprint queue random sched shlex shutil smtplib statistics string tarfile tempfile "
    "textwrap threading timeit tokenize trace turtle typing unittest/case urllib/parse wave weakref "
    "zipfile"
)
_LICENSED: Final = ("numpy", "pyarrow", "scikit-learn", "duckdb", "fastapi")
"""packages that this one needs: another may come or go between two runs"""


class StandardLibrarySource:
    """About 150 passages of ``SHORTEST`` to ``LONGEST`` characters; the domain is the label."""

    has_masks = False

    def __init__(self) -> None:
        self._samples = [
            Sample(None, text, domain, source)
            for domain, count in NUM_PASSAGES.items()
            for source, text in islice(_domain(domain), count)
        ]
        if not self._samples:
            raise UserError(
                "This Python brings none of its texts along (no sources, no pydoc_data); "
                "give a folder of text files instead of bundled:texts.",
                field="data",
            )
        whole = "\0".join(f"{sample.source}\0{sample.text}" for sample in self._samples)
        self.content_sha256 = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
        """tells the texts of one version of Python, or of a package, from those of another"""
        self.index = LabelIndex.of([sample.label for sample in self._samples])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        for row in rows:
            yield self._samples[row]


def zen() -> str:
    """The Zen of Python, read from the source of ``this``: importing it would print it."""
    tree = ast.parse(_module_source("this"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                return codecs.decode(value, "rot13")
    return ""


def _domain(domain: str) -> Iterator[tuple[str, str]]:
    """(source, passage) of a domain, the texts by turns: first passages first, at most three of each."""
    shortest = 200 if domain == "poem" else SHORTEST
    texts = {
        "documentation": _chapters,
        "docstrings": _docstrings,
        "code": _code,
        "legal": _licences,
        "poem": lambda: iter([("this.py", zen())]),
    }[domain]
    per_text = 12 if domain == "legal" else PER_TEXT
    started: list[tuple[str, Iterator[str]]] = []
    for source, text in texts():  # the first turn goes no further than it is asked to: parsing takes time
        passages = cut_passages(text, LONGEST, shortest)
        started.append((source, passages))
        if first := next(passages, None):
            yield f"{source}, passage 1", first
    for turn in range(2, per_text + 1):
        for source, passages in started:
            if passage := next(passages, None):
                yield f"{source}, passage {turn}", passage


def _chapters() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for name in _TOPICS.split():
        if name in topics:
            yield f"language reference: {name}", topics[name]


def _code() -> Iterator[tuple[str, str]]:
    for name in _MODULES.split():
        if source := _module_source(name):
            yield f"{name}.py", source


def _docstrings() -> Iterator[tuple[str, str]]:
    """All docstrings of a module as one text, in the order of the source."""
    for name in _MODULES.split():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in old sources are not ours to report
            tree = ast.parse(_module_source(name))
        yield f"docstrings of {name}.py", "\n\n".join(_docstrings_of(tree))


def _docstrings_of(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Of the node itself, then of its classes and functions; short ones say too little."""
    docstring = ast.get_docstring(node)
    if docstring and len(docstring) > 80:
        yield docstring
    if not isinstance(node, ast.FunctionDef):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                yield from _docstrings_of(child)


def _licences() -> Iterator[tuple[str, str]]:
    standard_library = Path(sysconfig.get_path("stdlib"))
    for file in (standard_library / "LICENSE.txt", standard_library.parent / "LICENSE.txt"):
        if file.is_file():
            yield "Python's licence", file.read_text(encoding="utf-8", errors="replace")
            break
    for package in _LICENSED:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for entry in files:
            if entry.name.upper().startswith(("LICENSE", "COPYING")) and ".dist-info" in str(entry):
                file = Path(str(entry.locate()))
                if file.is_file():
                    yield f"licence of {package}", file.read_text(encoding="utf-8", errors="replace")
                    break


def _module_source(name: str) -> str:
    """Source of a standard module as text; empty where this Python ships without it."""
    file = Path(sysconfig.get_path("stdlib"), f"{name}.py")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
