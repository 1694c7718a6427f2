"""Samples that need no download: drawn scenes, crops of photographs, handwritten digits, texts, six languages."""

from __future__ import annotations

from engine.sources.sample import Source


def open_bundled(name: str) -> Source:
    """The source behind ``bundled:scenes`` and so on (``engine.datasets.BUNDLED`` has all); KeyError otherwise."""
    if name == "bundled:scenes":
        from engine.bundled.scenes import SceneSource

        return SceneSource()
    if name == "bundled:photos":
        from engine.bundled.photos import PhotoSource

        return PhotoSource()
    if name == "bundled:digits":
        from engine.bundled.digits import DigitSource

        return DigitSource()
    if name == "bundled:texts":
        from engine.bundled.texts import StandardLibrarySource

        return StandardLibrarySource()
    if name == "bundled:languages":
        from engine.bundled.languages import LanguageSource

        return LanguageSource()
    raise KeyError(name)
