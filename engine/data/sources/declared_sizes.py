"""What files declare of their size, compared with limits before anything of that size is made."""

from __future__ import annotations

from typing import Final

from tokenpaths.engine.base.errors import UserError

ROWS_OF_ANY_FILE: Final = 1_000_000
ROWS_A_BYTE: Final = 64
"""rows per byte of a file beyond which it is not believed: columns of one repeated value take less than a bit a row"""


def check_rows(num_rows: int, num_bytes: int, where: str, field: str) -> None:
    """Refuse more rows than a file of ``num_bytes`` holds of anything but one repeated value.

    Raises:
        UserError: there are too many.
    """
    if num_rows > max(ROWS_OF_ANY_FILE, ROWS_A_BYTE * num_bytes):
        raise UserError(
            f"{where}: declares {num_rows:,} rows in {num_bytes:,} bytes, which unfold to far more than they can hold "
            "of different values; split it if it is yours",
            field=field,
        )


def check_unfolded(num_bytes: int, most: int, where: str, field: str) -> None:
    """Refuse what declares more than ``most`` bytes, which would be in memory at once.

    Raises:
        UserError: it does.
    """
    if num_bytes > most:
        raise UserError(
            f"{where}: declares {num_bytes / 2**20:,.0f} MB that would be in memory at once; at most "
            f"{most / 2**20:,.0f} MB are",
            field=field,
        )
