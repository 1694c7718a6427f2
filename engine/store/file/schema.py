"""Tables of a run file, and the layout of ribbons in ``token``.

Shapes: S steps, K slots, V = S·K visits. Tables of soft and gated families: ``soft_tables``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenpaths.engine.base.records import UNUSED_KIND, ModuleInfo, RunInfo
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES
from tokenpaths.engine.store.file.text_pieces import PIECES, TEXT_SQL
from tokenpaths.engine.store.file.weight_codes import LINEAR, MARGIN_COLUMNS, WeightCode, code_for

STORAGE_VERSION = "v1.2.0"
SMALL_BLOCK_BYTES, LARGE_BLOCK_BYTES, LARGEST_BLOCK_BYTES = 16_384, 65_536, 262_144
ROW_GROUP = 260_096
"""rows per row group: a column of one byte fills four large blocks or one of the largest to 99 %. Two groups of half as
many would fill one of the largest as well, but DuckDB rarely puts two into one block"""
WIDEST_COLUMN_LAYOUT = 64
"""maximum number of visits per token stored as columns; beyond, one array of ids and one BLOB of weights"""
WORD_BITS, MOST_PACKED_BITS = 64, 56
ALL_LABELS = -1
"""label_id of summary rows over all tokens, labelled or not"""
SAMPLE_TABLE_ROWS = 1_000_000
"""size of the hash sample of ``token``; smaller runs have a view of that name instead"""


@dataclass(frozen=True)
class Layout:
    """Storage layout of the ribbons in table ``token``."""

    num_steps: int
    top_k: int
    num_modules: int
    weights: WeightCode = LINEAR
    """encoding of the 8-bit weights"""
    by_path: bool = False
    """True: a token has no ids of its own, its ribbon is that of its path (only with one slot, because a path does not
    store the order of slots)"""
    unused_from: int | None = None
    """the ids from here on stand for slots that a token did not use; None: every token uses K modules"""
    unique: bool = False
    """True: most tokens have a path of their own, so paths have no ribbons, and that of a path is its first token's"""
    of_shard: bool = False
    """True: packed ids are plain bytes, as Parquet has no arrays of numbers that are fast"""

    @property
    def visits(self) -> int:
        return self.num_steps * self.top_k

    @property
    def packed(self) -> bool:
        """True: words ``ids`` (``packed_ids``) and a BLOB ``weights``; False: columns m0, w0, m0_1, w0_1 …"""
        return self.visits > WIDEST_COLUMN_LAYOUT

    @property
    def even_level(self) -> int:
        """The 8-bit weight of 1/K."""
        return int(self.weights.encode(np.array([1 / self.top_k]))[0])

    @property
    def even_weights(self) -> str:
        """SQL of packed weights that are all 1/K, which ``token_coded`` holds as NULL; empty where none are packed."""
        return f"repeat('\\x{self.even_level:02X}'::BLOB, {self.visits})" if self.packed else ""

    @property
    def id_bits(self) -> int:
        """Bits of an id in a word of ``ids``."""
        return max(1, (self.num_modules - 1).bit_length())

    @property
    def ids_in_word(self) -> int:
        """Ids in one of 64 bits: as many as take the fewest bits in the file."""
        return min(range(WORD_BITS // self.id_bits, 0, -1), key=self._stored_bits)

    def _stored_bits(self, ids_in_word: int) -> int:
        # DuckDB packs numbers of 64 bits into as many as they have, but those of more than 56 into 64.
        width = ids_in_word * self.id_bits
        return -(-self.visits // ids_in_word) * (width if width <= MOST_PACKED_BITS else WORD_BITS)

    @property
    def num_words(self) -> int:
        """W, words of a token."""
        return -(-self.visits // self.ids_in_word)

    @property
    def margin_bytes(self) -> tuple[int, int]:
        """Widths of the BLOBs ``margins`` and ``runner_ups``."""
        return 2 * self.num_steps, self.id_dtype.itemsize * self.num_steps

    @property
    def id_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Little-endian ids: one byte up to 256 modules, else two."""
        return np.dtype(np.uint8) if self.num_modules <= 256 else np.dtype("<u2")

    @property
    def id_type(self) -> str:
        return "UTINYINT" if self.num_modules <= 256 else "USMALLINT"

    def module_column(self, step: int, slot: int) -> str:
        return f"m{step}" if slot == 0 else f"m{step}_{slot}"

    def weight_column(self, step: int, slot: int) -> str:
        return f"w{step}" if slot == 0 else f"w{step}_{slot}"

    def id_columns(self) -> list[str]:
        """Columns of ``token`` that hold the ids of a ribbon, unless it is packed."""
        return ["path_id"] if self.by_path else self.module_columns()

    def module_columns(self) -> list[str]:
        """In visit order: by step, then by slot."""
        return [self.module_column(s, k) for s in range(self.num_steps) for k in range(self.top_k)]

    def weight_columns(self) -> list[str]:
        return [self.weight_column(s, k) for s in range(self.num_steps) for k in range(self.top_k)]


TOKEN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("sample", "INTEGER"),
    ("token", "INTEGER"),
    ("label_id", "INTEGER"),
    ("path_id", "INTEGER"),
    ("token_id", "INTEGER"),
    ("predicted_id", "INTEGER"),
    ("row", "SMALLINT"),
    ("col", "SMALLINT"),
    ("char_start", "INTEGER"),
    ("char_end", "INTEGER"),
    ("region", "UTINYINT"),
    ("loss", "FLOAT"),
    ("gate_entropy", "FLOAT"),
    ("flops", "FLOAT"),
)

SAMPLE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("sample", "INTEGER"),
    ("label_id", "INTEGER"),
    ("label", "VARCHAR"),
    ("prediction", "VARCHAR"),
    ("confidence", "DOUBLE"),
    ("loss", "DOUBLE"),
    ("gate_entropy", "DOUBLE"),
    ("num_tokens", "INTEGER"),
    ("first_row", "BIGINT"),
    ("compute", "DOUBLE"),
    ("reuse", "DOUBLE"),
    ("num_distinct_paths", "INTEGER"),
    ("text", "VARCHAR"),
    ("search", "VARCHAR"),
    ("image", "BLOB"),
    ("grid_rows", "INTEGER"),
    ("grid_cols", "INTEGER"),
    ("source", "VARCHAR"),
)

_SMALL_TABLES = """
CREATE TABLE run (run_id VARCHAR, model VARCHAR, family VARCHAR, modality VARCHAR, dataset VARCHAR,
    split VARCHAR, num_samples INTEGER, num_tokens BIGINT, num_steps INTEGER, num_modules INTEGER,
    top_k INTEGER, num_paths BIGINT, accuracy DOUBLE, loss DOUBLE, mean_compute DOUBLE,
    mean_reuse DOUBLE, weight_semantics VARCHAR, config VARCHAR, checkpoint_sha256 VARCHAR,
    engine_version VARCHAR, created_at VARCHAR, schema_version INTEGER,
    weight_code VARCHAR, path_layout VARCHAR);
CREATE TABLE module (step INTEGER, module INTEGER, name VARCHAR, kind VARCHAR, num_params BIGINT,
    flops_per_token BIGINT);
CREATE TABLE region (region INTEGER, name VARCHAR);
CREATE TABLE token_text (token_id INTEGER, text VARCHAR);
CREATE TABLE label (label_id INTEGER, label VARCHAR, num_samples BIGINT, num_tokens BIGINT);
CREATE TABLE step_summary (step INTEGER, label_id INTEGER, num_tokens BIGINT, gate_entropy DOUBLE);
CREATE TABLE null_path (kind VARCHAR, rank INTEGER, count BIGINT);
CREATE TABLE null_usage (kind VARCHAR, step INTEGER, module INTEGER, count BIGINT);
CREATE TABLE path_fit (kind VARCHAR, num_paths BIGINT, num_tokens BIGINT, effective_paths DOUBLE,
    slope DOUBLE, r2 DOUBLE);
CREATE TABLE path_point (kind VARCHAR, rank INTEGER, count BIGINT);
CREATE TABLE path_page (page INTEGER, ranks BLOB USING COMPRESSION uncompressed,
    ribbons BLOB USING COMPRESSION uncompressed);
CREATE TABLE path_planes (first_rank INTEGER, num_paths INTEGER, planes BLOB USING COMPRESSION uncompressed);
CREATE TABLE profile_page (first_sample INTEGER, num_samples INTEGER,
    counts BLOB USING COMPRESSION uncompressed, places BLOB USING COMPRESSION uncompressed,
    large BLOB USING COMPRESSION uncompressed);
CREATE TABLE path_count (kind VARCHAR, count BIGINT, num_paths BIGINT);
CREATE TABLE answer (question VARCHAR, arguments VARCHAR, answer VARCHAR);
CREATE TABLE histogram (measure VARCHAR, bins INTEGER, answer VARCHAR);
CREATE TABLE association (attribute VARCHAR, nmi DOUBLE, null_mean DOUBLE, null_std DOUBLE,
    p_value DOUBLE, shuffles INTEGER, num_tokens INTEGER, shuffled VARCHAR, whose VARCHAR);
CREATE TABLE known_token (place BIGINT, untrained_path INTEGER);
CREATE TABLE flow (step INTEGER, source INTEGER, target INTEGER, count DOUBLE, weight DOUBLE,
    label_id INTEGER);
CREATE TABLE usage (step INTEGER, module INTEGER, count BIGINT, weight DOUBLE, label_id INTEGER);
"""


# Tables of large runs that hold together what lies far apart in the file: pages read a few blocks, not hundreds. They
# hold what the same functions read from the other tables, and a file is complete without them. Sealing adds them to
# runs of ``write.large.seal_answers.LEAST_TOKENS`` tokens or more, where they apply.
DRAWN_TOKENS = "drawn_token"
"""the tokens of the seeded draw (``ask.tables.token_table``) in reading order, with the word of each"""
DRAWN_PATHS = "drawn_path"
"""their paths by rank, with ribbons as bytes"""
DRAWN_WORDS = "drawn_word"
"""the words, in the order of their numbers"""
DRAWN_LOSSES = "drawn_loss"
"""the loss of each of the drawn tokens, as a level"""
HEADS = "sample_head"
"""the beginning of each text"""
EXAMPLES = "path_example"
"""tokens of the most frequent paths between their neighbours, in the order in which they are drawn"""
STRONGEST = "path_strongest"
"""the strongest tokens of paths of more than ``STRONGEST_EACH`` tokens (``ask.topics.things.strongest``), strongest
first, those of the first ``EXAMPLE_RANKS`` between their neighbours"""
DRAWN_TABLES = (DRAWN_TOKENS, DRAWN_PATHS, DRAWN_WORDS, DRAWN_LOSSES, HEADS, EXAMPLES, STRONGEST)
HEAD_CHARACTERS = 160
"""of a text in ``sample_head``, and in lists of samples"""
EXAMPLE_RANKS = 1000
"""paths with rows in ``path_example``"""
EXAMPLES_EACH = 60
STRONGEST_EACH = 12
"""as many as a page shows"""
EXAMPLE_SEED = 0
"""the seed of the draw that ``path_example`` holds"""

CALCULATED = frozenset({("sample", "text")})
"""table and name of the columns that DuckDB works out from others, and files do not hold"""
PART_TABLES = (coded.TABLE, "sample", *(soft.table for soft in SOFT_TABLES.values()))
"""what the parts of a run hold (``base.run_parts``)"""
ROW = "row_number"
"""the number of a row in the whole run: a column in parts, which DuckDB finds by its zone maps; it takes no room, as it
rises by one. The views over the parts call it ``rowid``"""

LOAD_TABLE = """
CREATE TABLE load (step INTEGER, time BIGINT, label_id INTEGER, module INTEGER, count BIGINT);
"""
"""counts over time and of each label, of runs that were made of counts; only those have it. Sorted by its columns; time
and label_id are NULL where the counts are of none"""


def first_unused(modules: Sequence[ModuleInfo]) -> int | None:
    """``Layout.unused_from`` of these modules."""
    return min((module.module for module in modules if module.kind == UNUSED_KIND), default=None)


def block_bytes(layout: Layout, *, large: bool, floats: bool = False) -> int:
    """Size of a block of the file of a small or a ``large`` run; parts of a run are large.

    Whoever reads one row reads a block of each column, and each column takes at least one. Small ones keep a run of one
    sample at 0.3 MB instead of 4, those of large runs are read in less time than the largest. These are for packed
    ids, whose words of 64 bits leave room in smaller ones, and for ``floats`` token by token (soft decisions, FLOPs of
    each token): DuckDB's compression of floats (ALP) works with them alone.
    """
    if not large:
        return SMALL_BLOCK_BYTES
    return LARGEST_BLOCK_BYTES if layout.packed or floats else LARGE_BLOCK_BYTES


def layout_for(info: RunInfo, modules: Sequence[ModuleInfo], *, shard: bool = False) -> Layout:
    """The layout of a new run; shards, which have no path table, store the ids with the tokens."""
    code = code_for(info.num_modules, info.top_k)
    layout = Layout(info.num_steps, info.top_k, info.num_modules, code, unused_from=first_unused(modules))
    by_path = info.top_k == 1 and not layout.packed and code.name == "linear" and not shard
    return replace(layout, by_path=by_path, of_shard=shard)


_TEXTS = {*PIECES, "search"}
"""by itself DuckDB leaves most texts as they are, half-filled blocks and all: six times the room"""
_TEXT_ONLY = {"token_id", "char_start", "char_end"}
_VISION_ONLY = {"row", "col"}


def token_columns(layout: Layout, info: RunInfo) -> list[tuple[str, str]]:
    """Name and SQL type of every column of ``token``, in order; see ``columns`` for their encoding in the file.

    Columns without values in this run are left out: an empty one takes half the space of a full one.
    """
    absent = _TEXT_ONLY if info.modality == "vision" else _VISION_ONLY
    if not info.regions:
        absent = absent | {"region"}
    if not info.predicts_tokens:
        absent = absent | {"predicted_id"}
    columns = [column for column in TOKEN_COLUMNS if column[0] not in absent]
    if info.scores:
        columns += [(name, "BLOB") for name in MARGIN_COLUMNS]
    if layout.packed:
        ids = "BLOB" if layout.of_shard else f"UBIGINT[{layout.num_words}]"
        return [*columns, ("ids", ids), ("weights", "BLOB")]
    if not layout.by_path:
        columns += [(name, layout.id_type) for name in layout.module_columns()]
    columns += [(name, "UTINYINT") for name in layout.weight_columns()]
    return columns


def create_tables(layout: Layout, info: RunInfo) -> str:
    """SQL that creates the tables filled while a run is written; ``path`` and ``path_member`` come at sealing."""
    columns = token_columns(layout, info)
    return _wide_tables(columns) + coded.view_sql(columns, layout.even_weights) + _SMALL_TABLES


def part_tables(layout: Layout, info: RunInfo) -> str:
    """SQL that creates the tables of a part."""
    number = (ROW, "BIGINT")
    return _wide_tables(token_columns(layout, info), [number]) + "".join(
        f"CREATE TABLE {soft.table} ({', '.join(f'{name} {kind}' for name, kind in [number, *soft.columns])});\n"
        for soft in SOFT_TABLES.values()
    )


def tables_over_parts(layout: Layout, info: RunInfo, parts: Sequence[str]) -> str:
    """As ``create_tables`` where tokens and samples lie in databases attached as ``parts``, one behind the other."""
    views = ""
    for table, names in _part_columns(layout, info).items():
        each = (f"SELECT {', '.join([f'{ROW} AS rowid', *names])} FROM {part}.main.{table}" for part in parts)
        views += f"CREATE VIEW {table} AS {' UNION ALL '.join(each)};\n"
    return views + coded.view_sql(token_columns(layout, info), layout.even_weights) + _SMALL_TABLES


def _part_columns(layout: Layout, info: RunInfo) -> dict[str, list[str]]:
    """Names of the columns of the tables of a part, without that of row numbers."""
    tokens = coded.coded_columns(token_columns(layout, info))
    tables = {coded.TABLE: tokens, "sample": stored_sample_columns()} | {
        soft.table: soft.columns for soft in SOFT_TABLES.values()
    }
    return {table: [name for name, _ in columns] for table, columns in tables.items()}


def stored_sample_columns() -> list[tuple[str, str]]:
    """Name and SQL type of the columns of ``sample`` in the file: ``SAMPLE_COLUMNS``, and the pieces of texts."""
    columns: list[tuple[str, str]] = []
    for name, kind in SAMPLE_COLUMNS:
        if name == "text":
            columns += [(piece, kind) for piece in PIECES]
            kind = f"{kind} {TEXT_SQL}"
        columns.append((name, kind))
    return [(name, f"{kind} USING COMPRESSION zstd" if name in _TEXTS else kind) for name, kind in columns]


def _wide_tables(columns: list[tuple[str, str]], before: Sequence[tuple[str, str]] = ()) -> str:
    samples = stored_sample_columns()
    tables = [
        (coded.TABLE, [*before, *coded.compressed(coded.coded_columns(columns))]),
        ("sample", [*before, *samples]),
    ]
    return "".join(
        f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)});\n"
        for table, columns in tables
    )
