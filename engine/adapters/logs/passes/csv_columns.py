"""Columns of a routing CSV: what each is called, and what comment lines before them say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tokenpaths.engine.adapters.logs.json_lines import text_lines
from tokenpaths.engine.adapters.logs.pieces.wording import check_once
from tokenpaths.engine.base.errors import UserError

LAYER = ("layer", "layer_id", "layer_idx", "il")
EXPERT = ("expert", "expert_id", "expert_idx")
TOKEN = ("token", "pos", "position", "row", "token_position", "token_idx", "token_index")
WEIGHT = ("weight", "routing_weight", "gate_weight", "prob")
SLOT = ("slot", "rank", "k")
TRACE = ("turn", "phase", "step", "layer", "slot", "expert", "weight")
"""columns of a route trace without a header"""
POSITIONS = ("pos", "position", "token_position", "step")
"""the columns whose values tokens of parallel sequences may share"""
SEQUENCE = ("seq", "seq_id")
SAMPLE = ("turn", "request", "request_id", "sample", "conversation")
PASS = ("call", "phase", "step", "is_decode", *SAMPLE)
COUNT = (
    *("count", "counts", "tokens", "num_tokens", "n_tokens", "token_count", "token_counts", "tokens_per_expert", "tpe"),
    *("load", "loads", "hits", "freq", "frequency", "activations", "usage"),
)
"""columns of a table that counts the tokens of each expert, and has no row a token"""


def is_csv(line: bytes, first: bytes = b"") -> bool:
    """Whether the first row is a header with layer and expert, two whole numbers, or a row of a trace that its
    ``first`` line, a comment, names."""
    cells = [cell.strip().strip('"').lower() for cell in line.decode("utf-8", "replace").split(",")]
    named = any(c in LAYER for c in cells) and any(c in EXPERT for c in cells)
    bare = all(cell.isdigit() for cell in cells[:6])
    return named or (bare and (len(cells) == 2 or first.startswith(b"# route_trace")))


@dataclass(frozen=True)
class Preamble:
    """What comment lines before the rows say (``# model=… n_expert=… n_expert_used=…``)."""

    model: str | None = None
    experts: int | None = None
    top_k: int | None = None
    scaled: bool = False
    """whether weights are what the model multiplies by, which may be above 1"""

    def read(self, line: bytes) -> Preamble:
        text = line.decode("utf-8", "replace").lstrip("# ").strip()
        found = dict(re.findall(r"(\w+)=(\S+)", text))
        numbers = {key: int(value[:9]) for key, value in found.items() if value.isascii() and value.isdigit()}
        model = found.get("model")
        return Preamble(
            self.model or (model.rsplit("/", 1)[-1].removesuffix(".gguf")[:200] if model else None),
            self.experts or next((numbers[k] for k in ("n_expert", "experts", "num_experts") if k in numbers), None),
            self.top_k or next((numbers[k] for k in ("n_expert_used", "top_k", "topk") if k in numbers), None),
            self.scaled or text.startswith("route_trace"),
        )


@dataclass(frozen=True)
class Header:
    """What stands before the rows."""

    columns: dict[str, int]
    """position of each known column, and ``width``"""
    skip: int
    """lines before the rows: blank ones, comments and the header"""
    position: str | None = None
    """name of the token's column if it is a position"""
    unread: tuple[str, ...] = ()
    preamble: Preamble = Preamble()
    divisor: float = 1.0
    """of weights"""


def read_header(file: Path) -> Header:
    preamble = Preamble()
    for where, line in text_lines(file):
        skip = int(where.rsplit(" ", 1)[1]) - 1
        if line.startswith(b"#"):
            preamble = preamble.read(line)
            continue
        cells = [cell.strip().strip('"').lower() for cell in line.decode("utf-8", "replace").split(",")]
        if all(cell.lstrip("-").replace(".", "", 1).isdigit() or cell == "nan" for cell in cells):
            if preamble.scaled and len(cells) in (len(TRACE) - 1, len(TRACE)):
                cells = list(TRACE[: len(cells)])
                return _named(file, cells, skip, preamble)
            if len(cells) != 2:
                raise UserError(
                    f"{file}: has {len(cells)} columns and no header; name them (layer, expert, token, weight)",
                    field="file",
                )
            return Header({"layer": 0, "expert": 1, "width": 2}, skip, preamble=preamble)
        return _named(file, cells, skip + 1, preamble)
    raise UserError(f"{file}: is empty", field="file")


def _named(file: Path, cells: list[str], skip: int, preamble: Preamble) -> Header:
    """The header of columns with these names."""
    found = {"width": len(cells)}
    known_columns = {"layer": LAYER, "expert": EXPERT, "token": TOKEN, "weight": WEIGHT, "seq": SEQUENCE, "slot": SLOT}
    for name, known in known_columns.items():
        place = next((cells.index(cell) for cell in known if cell in cells), None)
        if place is not None:
            found[name] = place
    if "layer" not in found or "expert" not in found:
        raise UserError(f"{file}: has the columns {', '.join(cells)}, but no 'layer' and 'expert'", field="file")
    if "token" not in found and (counts := [cell for cell in cells if cell in COUNT]):
        raise UserError(
            f"{file}: is a table of counts of tokens by expert (it has the column {counts[0]!r} and none that tells "
            "tokens apart), not of what each token chose. Counts are read as JSON lines "
            '{"iter": 0, "layer": 3, "tpe": [12, 0, …]}, a count for each expert, or as one JSON object layer → '
            "{expert: tokens}",
            field="file",
        )
    if "token" not in found and "step" in cells:
        found["token"] = cells.index("step")  # one token a step: its position
    for cell in cells:
        if cell in PASS and cells.index(cell) not in found.values():
            found[f"sample {cell}" if cell in SAMPLE else f"pass {cell}"] = cells.index(cell)
    token = cells[found["token"]] if "token" in found else None
    read = [place for key, place in found.items() if key != "width"]
    check_once(file, [cells[place] for place in read], cells)
    unread = tuple(cell for place, cell in enumerate(cells) if place not in read)
    return Header(found, skip, token if token in POSITIONS else None, unread, preamble)
