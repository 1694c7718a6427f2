"""Request of a ``gates`` job. Imported by the API, so without torch."""

from __future__ import annotations

from pydantic import Field, StrictInt, StrictStr, model_validator

from tokenpaths.engine.edits.reroute_request import SamplesWanted

MOST_TEXTS = 512


class GatesRequest(SamplesWanted):
    """A scan over many texts, or with ``sample`` and ``position`` what becomes of one word."""

    limit: StrictInt = Field(
        64,
        ge=1,
        le=MOST_TEXTS,
        description="A scan: at most so many texts, of data spread over labels, of a run evenly",
    )
    position: StrictInt | None = Field(
        None, ge=0, description="Of the sample: the word behind this token. None: a scan over many texts"
    )
    word: StrictStr | None = Field(
        None, min_length=1, max_length=100, description="A word of one token; None: the token that follows in the text"
    )
    other: StrictInt | None = Field(
        None, ge=0, description="Number of another text of the run, whose gates are one more condition"
    )

    @model_validator(mode="after")
    def _scan_or_word(self) -> GatesRequest:
        if (self.sample is None) != (self.position is None):
            raise ValueError("sample and position go together: the word behind one token of one text")
        if self.sample is None and (self.word is not None or self.other is not None):
            raise ValueError("word and other are of one text; give its sample and position")
        return self
