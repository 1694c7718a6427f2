"""Settings of image and text dreams, with the values of the DNA paper as defaults. No torch here.

Source: Distributed Neural Architectures, appendix C.1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_ITERATIONS = 65_536
MOST_TOKENS = 4096
MOST_TRIED = 65_536
"""tokens of all swaps that one round tries"""


class ImageSettings(BaseModel):
    """Optimiser, disturbances and regularisers of an image dream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    iterations: int = Field(default=2048, ge=1, le=MOST_ITERATIONS, description="iterations of Adam")
    rate: float = Field(default=0.001, gt=0, le=1, allow_inf_nan=False, description="Adam's rate")
    jitter: float = Field(
        default=6 / 16,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="largest shift in patches, both ways: the paper's 6 pixels are 6/16 of its patch",
    )
    rotation: float = Field(default=10, ge=0, le=180, allow_inf_nan=False, description="largest turn in degrees")
    scaling: float = Field(default=0.1, ge=0, le=0.5, allow_inf_nan=False, description="largest change of size")
    colour_shift: float = Field(
        default=1, ge=0, le=10, allow_inf_nan=False, description="spread of a channel's shift and of its log stretch"
    )
    noise: float = Field(
        default=1, ge=0, le=10, allow_inf_nan=False, description="spread of the noise at the start; it falls to 0"
    )
    total_variation: float = Field(default=0.01, ge=0, le=100, allow_inf_nan=False, description="its coefficient")
    spread: float = Field(
        default=0.01, gt=0, le=10, allow_inf_nan=False, description="spread of the first coefficients"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the network's products while it dreams: bfloat16 is taken where its products are quicker, "
        "and gives another picture; what the dream is worth is always measured in float32",
    )


class TextSettings(BaseModel):
    """The search for tokens of a text dream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    iterations: int = Field(default=64, ge=1, le=MOST_ITERATIONS, description="rounds of swaps")
    length: int = Field(default=12, ge=1, le=1024, description="tokens of a dreamed text")
    starts: int = Field(default=8, ge=1, le=64, description="texts that are dreamed at once, the best is kept")
    candidates: int = Field(
        default=24, ge=1, le=1024, description="swaps that the gradient proposes and a forward pass tries, a round"
    )
    fluency: float = Field(
        default=0.05,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="weight of the model's own mean log probability of the text, in nats",
    )
    whole_words: bool = Field(default=True, description="only tokens that are words, numbers or marks by themselves")
    corpus_windows: int = Field(
        default=4096, ge=64, le=65_536, description="stretches of the bundled texts that are looked through first"
    )

    @model_validator(mode="after")
    def _fits(self) -> TextSettings:
        if self.length * self.starts > MOST_TOKENS:
            raise ValueError(
                f"{self.starts} texts of {self.length} tokens are {self.length * self.starts:,} tokens at once; "
                f"at most {MOST_TOKENS:,} are: take fewer starts or a smaller length"
            )
        if self.length * self.starts * self.candidates > MOST_TRIED:
            raise ValueError(
                f"{self.candidates} candidates for each of {self.starts} texts of {self.length} tokens are "
                f"{self.length * self.starts * self.candidates:,} tokens a round; at most {MOST_TRIED:,} are: "
                "take fewer candidates, fewer starts or a smaller length"
            )
        return self
