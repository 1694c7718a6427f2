"""Samples that need no download: drawn scenes, crops of photographs, handwritten digits, texts, six languages."""

from __future__ import annotations

from tokenpaths.engine.data.sources.sample import Source


def open_bundled(name: str) -> Source:
    """The source behind ``bundled:scenes`` and so on (``datasets.BUNDLED`` has all); KeyError otherwise."""
    if name == "bundled:scenes":
        from tokenpaths.engine.data.bundled.scenes import SceneSource

        return SceneSource()
    if name == "bundled:pictures":
        from tokenpaths.engine.data.bundled.sample_pictures import PictureSource

        return PictureSource()
    if name == "bundled:photos":
        from tokenpaths.engine.data.bundled.photos import PhotoSource

        return PhotoSource()
    if name == "bundled:digits":
        from tokenpaths.engine.data.bundled.digits import DigitSource

        return DigitSource()
    if name == "bundled:texts":
        from tokenpaths.engine.data.bundled.texts import StandardLibrarySource

        return StandardLibrarySource()
    if name == "bundled:languages":
        from tokenpaths.engine.data.bundled.languages import LanguageSource

        return LanguageSource()
    raise KeyError(name)
