"""Streamlit's static files from memory, and preload hints for the scripts of each view.

A first visit requests about 140 files. Streamlit passes each through its whole middleware stack, and the browser
discovers most of them late: a widget's script when the first widget is drawn, the chart library at the first chart.
``CachedFiles`` responds before that stack, and ``index.html`` gets a ``modulepreload`` link for each script that the
view needs. ``ELEMENTS`` lists the elements of each view; imports between scripts are parsed from the scripts. If
another version of Streamlit has other file names, only the hints are lost.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import mimetypes
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qs

import streamlit
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

YEAR = "public, immutable, max-age=31536000"
"""script names contain a content hash, so they never change"""
ASK = "no-cache"
LEAST_GZIP = 1000
OWN = ("BidiComponent",)
"""elements implemented by this project: shortcuts, image walls, clickable tokens"""
WIDGETS = ("Html", "ButtonGroup", "Button", "LinkButton", *OWN)
"""of every view: they stand in the bar at the top"""
CHART = ("ArrowVegaLiteChart", "embed")
TABLE = ("DataFrame",)
FIND = ("Selectbox", "TextInput")
ELEMENTS: Mapping[str, tuple[str, ...]] = {
    "home": (*CHART, *FIND, "FileUploader", "TextArea"),
    "routes": (*FIND, *CHART),
    "paths": (*FIND, *CHART, *TABLE),
    "samples": (*FIND, *CHART),
    "work": (*FIND, *CHART),
    "modules": (*FIND, *CHART, *TABLE),
    "compare": ("Selectbox", "Multiselect", *CHART),
    "family": ("Selectbox", *CHART),
    "dream": ("Selectbox", "Slider", "NumberInput"),
    "change": FIND,
    "importance": (*FIND, "Slider"),
    "jobs": ("Selectbox", "NumberInput"),
}
"""view → elements drawn first, by the names of Streamlit's scripts; a test compares them with the browser's requests"""
IMPORTED = re.compile(r'(?:from|import)\s*"\./([\w.\-]+\.js)"')
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
FIRST = re.compile(r"static/js/([\w.\-]+\.js)")


@dataclass
class Files:
    """Streamlit's static files by URL path, read once."""

    folder: Path
    _kept: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    _pages: dict[str, bytes] = field(default_factory=dict)
    _imported: dict[str, list[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.known = {
            "/" + file.relative_to(self.folder).as_posix(): file
            for file in self.folder.glob("static/**/*")
            if file.is_file()
        }

    def body(self, address: str, *, small: bool) -> bytes | None:
        """The file at an address, compressed if ``small``; None if it is not a static file."""
        if address not in self.known:
            return None
        if (address, small) not in self._kept:
            plain = self.known[address].read_bytes()
            self._kept[address, small] = gzip.compress(plain, 6, mtime=0) if small else plain
        return self._kept[address, small]

    def page(self, view: str) -> bytes | None:
        """``index.html`` with preload hints for ``view``; None if there is none."""
        view = view if view in ELEMENTS else ""
        with self._lock:
            if view not in self._pages:
                try:
                    text = (self.folder / "index.html").read_text(encoding="utf-8")
                    text = with_hints(text, self.needed((*WIDGETS, *ELEMENTS.get(view, ())), FIRST.findall(text)))
                except (OSError, UnicodeDecodeError):
                    return None
                self._pages[view] = text.encode()
            return self._pages[view]

    def needed(self, elements: Iterable[str], already: Iterable[str] = ()) -> list[str]:
        """Scripts of ``elements`` and their transitive imports, without ``already``."""
        scripts = {Path(address).name: address for address in self.known if address.endswith(".js")}
        by_element: dict[str, list[str]] = {}
        for name in scripts:
            by_element.setdefault(name.split(".")[0], []).append(name)
        names, seen = [], set(already)
        waiting = [name for element in elements for name in by_element.get(element, [])]
        while waiting:
            name = waiting.pop(0)
            if name in seen or name not in scripts:
                continue
            seen.add(name)
            names.append(name)
            if name not in self._imported:
                text = (self.body(scripts[name], small=False) or b"").decode("utf-8", "replace")
                self._imported[name] = IMPORTED.findall(text)
            waiting += self._imported[name]
        return names

    def inline_scripts(self) -> tuple[str, ...]:
        """Hashes of the scripts in ``index.html`` itself, as Content-Security-Policy writes them."""
        try:
            page = (self.folder / "index.html").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ()
        return script_hashes(page)

    def load(self) -> None:
        """Read all files referenced by the pages in advance."""
        for view in ELEMENTS:
            self.page(view)


def script_hashes(page: str) -> tuple[str, ...]:
    """Hashes of the inline scripts of an HTML page, as Content-Security-Policy writes them."""
    digests = (hashlib.sha256(script.encode()).digest() for script in INLINE.findall(page))
    return tuple(f"sha256-{base64.b64encode(digest).decode('ascii')}" for digest in digests)


@lru_cache(maxsize=1)
def streamlit_files() -> Files:
    """The files of the installed Streamlit; one shared object per process."""
    return Files(Path(streamlit.__file__).with_name("static"))


def with_hints(page: str, scripts: Iterable[str]) -> str:
    """``page`` with a ``modulepreload`` link for each script at the end of its head."""
    links = "".join(f'    <link rel="modulepreload" crossorigin href="./static/js/{name}">\n' for name in scripts)
    return page.replace("</head>", f"{links}  </head>", 1)


class CachedFiles:
    """ASGI middleware: serves GET and HEAD for the page and its files from memory, and passes everything else on.

    Bodies are compressed only for browsers on other machines; locally that would cost more than it saves.
    """

    def __init__(self, app: ASGIApp, files: Files) -> None:
        self.app, self.files = app, files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD") or scope.get("root_path"):
            await self.app(scope, receive, send)
            return
        request, address = Headers(scope=scope), scope["path"]
        small = "gzip" in request.get("accept-encoding", "") and not _is_here(scope)
        if address == "/":
            view = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("view", ["home"])[0]
            body, kind, keep = self.files.page(view), "text/html; charset=utf-8", ASK
            small = False
        else:
            kind = _kind(address)
            small = small and kind.startswith(("text/", "application/")) and self._is_long(address)
            body, keep = (None if "range" in request else self.files.body(address, small=small)), YEAR
        if body is None:
            await self.app(scope, receive, send)
            return
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"' if keep == ASK else ""
        headers = {"content-type": kind, "cache-control": keep, "x-content-type-options": "nosniff"}
        if tag:
            headers["etag"] = tag
        else:
            headers["vary"] = "accept-encoding"
        if small:
            headers["content-encoding"] = "gzip"
        fresh = bool(tag) and tag in request.get("if-none-match", "")
        if not fresh:
            headers["content-length"] = str(len(body))
        await send(
            {
                "type": "http.response.start",
                "status": 304 if fresh else 200,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            }
        )
        await send({"type": "http.response.body", "body": b"" if fresh or scope["method"] == "HEAD" else body})

    def _is_long(self, address: str) -> bool:
        return len(self.files.body(address, small=False) or b"") >= LEAST_GZIP


def _kind(address: str) -> str:
    if address.endswith(".js"):  # the system's MIME table differs between machines
        return "text/javascript; charset=utf-8"
    return mimetypes.guess_type(address)[0] or "application/octet-stream"


def _is_here(scope: Scope) -> bool:
    """Whether the browser runs on this machine."""
    try:
        return ip_address((scope.get("client") or ("",))[0]).is_loopback
    except ValueError:
        return False
