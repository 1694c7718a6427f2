"""An API some of whose questions never end and ignore interruption: ``python -m tests.faults.endless_questions api``.

The flow of the label ``endless`` (``long``: can be interrupted; ``large``: fills the memory), the export of ``label``,
and the card of the run ``endless``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tokenpaths.backend.serve import main
from tokenpaths.engine.store.ask.run import Run

ENDLESS = "SELECT levenshtein(repeat('a', 3000000), repeat('b', 3000000))"
"""one call of one function, hours long: DuckDB looks for an interruption only before and after"""
LARGE = "SELECT count(*) FROM (SELECT DISTINCT range FROM range(2000000000))"
"""needs tens of gigabytes"""
LONG = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range = 7"


def never_end(run: Run, sql: str = ENDLESS) -> None:
    """Ask DuckDB something endless, as every question asks."""
    with run.cursor() as cursor:
        cursor.execute(sql).fetchall()


def make_questions_endless() -> None:
    """Patch ``Run``."""
    flow, card, export = Run.flow, Run.card, Run.export

    def endless_flow(run: Run, **options: Any) -> dict[str, Any]:
        if (sql := {"endless": ENDLESS, "long": LONG, "large": LARGE}.get(options.get("label"))) is not None:
            never_end(run, sql)
        return flow(run, **options)

    def endless_card(run: Run) -> dict[str, Any]:
        if run.run_id == "endless":
            never_end(run)
        return card(run)

    def endless_export(run: Run, table: str, file_format: str) -> Iterator[bytes]:
        if table == "label":
            never_end(run)
        yield from export(run, table, file_format)

    Run.flow, Run.card, Run.export = endless_flow, endless_card, endless_export  # type: ignore[method-assign]


if __name__ == "__main__":
    make_questions_endless()
    sys.exit(main(sys.argv[1:]))
