"""Web origins as a setting holds them: scheme, host and port of sites, checked where the setting is read.

Of its own, because the settings and the page's server, which do not know each other, both need it.
"""

from __future__ import annotations

import re

_ORIGIN = re.compile(r"(https?)://([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]{2,39}\])(:[0-9]{1,5})?")
_USUAL = {"http": ":80", "https": ":443"}


def read_origins(text: str) -> tuple[str, ...]:
    """The origins of a list separated by spaces or commas, as browsers write them.

    Raises:
        ValueError: One of them is no origin; the sentence says which, and what would be one.

    >>> read_origins("https://Docs.example.com/ http://127.0.0.1:3000")
    ('https://docs.example.com', 'http://127.0.0.1:3000')
    """
    return tuple(dict.fromkeys(_origin(word) for word in text.replace(",", " ").split()))


def _origin(word: str) -> str:
    example = "name each site by scheme, host and port, for example https://docs.example.com or http://127.0.0.1:3000"
    if "*" in word:
        raise ValueError(f"{word!r} stands for sites that nobody has named; {example}")
    origin = word.lower().removesuffix("/")
    match = _ORIGIN.fullmatch(origin)
    if match is None or ".." in origin or (match[4] is not None and not 1 <= int(match[4][1:]) <= 65535):
        raise ValueError(f"{word!r} is no origin of a web site; {example}")
    return origin.removesuffix(_USUAL[match[1]])
