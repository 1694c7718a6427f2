"""Which sites may frame a view of the page (``?embed=1``): nobody, unless TOKENPATHS_EMBED_ORIGINS names them.

The guard lets such requests through and tells browsers who may frame the answer; ``page.address.embedded`` makes the
session of a framed page one that only reads. Both read the same address: what the guard takes for a framed view, the
session has to.
"""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Scope

VARIABLE = "TOKENPATHS_EMBED_ORIGINS"
MOST_QUERY = 4000
"""characters of the address of a framed view; Streamlit takes a much longer one for an empty one"""
MOST_FIELDS = 100


def asks_to_embed(query: str) -> bool:
    """Whether an address is that of a framed view: ``embed=1``, once, and nothing like it in other letters."""
    if len(query) > MOST_QUERY:
        return False
    try:
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        return False
    return fields.get("embed") == ["1"] and [name for name in fields if name.lower() == "embed"] == ["embed"]


def is_framed_view(scope: Scope, origins: tuple[str, ...]) -> bool:
    """Whether the answer to a request may be framed by ``origins``."""
    return (
        bool(origins)
        and scope["type"] == "http"
        and scope["method"] in ("GET", "HEAD")
        and scope["path"] == "/"
        and asks_to_embed(scope.get("query_string", b"").decode("latin-1"))
    )


def is_opened_in_frame(scope: Scope) -> bool:
    """Whether a browser opens a page in a frame, not a picture, script or plugin."""
    headers = Headers(scope=scope)
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "iframe"


def ancestors(origins: tuple[str, ...]) -> str:
    """The sources of ``frame-ancestors``."""
    return " ".join(origins) or "'none'"
