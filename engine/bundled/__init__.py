"""Samples that need no download: drawn scenes, crops of photographs, texts that Python ships."""

from __future__ import annotations

from engine.sources.sample import Source


def open_bundled(name: str) -> Source:
    """The source behind ``bundled:scenes``, ``bundled:photos`` or ``bundled:texts``; KeyError otherwise."""
    if name == "bundled:scenes":
        from engine.bundled.scenes import SceneSource

        return SceneSource()
    if name == "bundled:photos":
        from engine.bundled.photos import PhotoSource

        return PhotoSource()
    if name == "bundled:texts":
        from engine.bundled.texts import StandardLibrarySource

        return StandardLibrarySource()
    raise KeyError(name)
