"""Tables of large runs that hold together what lies far apart in the file: pages read a few blocks, not hundreds.

They hold what the same functions read from the other tables, and a file is complete without them. Sealing adds them to
runs of ``write.large.seal_answers.LEAST_TOKENS`` tokens or more, where they apply:

``drawn_token``   the tokens of the seeded draw (``ask.tables.token_table``) in reading order, with the word of each
``drawn_path``    their paths by rank, with ribbons as bytes
``drawn_word``    the words, in the order of their numbers
``sample_head``   the beginning of each text
``path_example``  tokens of the most frequent paths between their neighbours, in the order in which they are drawn
"""

from __future__ import annotations

from typing import Final

DRAWN_TOKENS: Final = "drawn_token"
DRAWN_PATHS: Final = "drawn_path"
DRAWN_WORDS: Final = "drawn_word"
HEADS: Final = "sample_head"
EXAMPLES: Final = "path_example"
DRAWN_TABLES: Final = (DRAWN_TOKENS, DRAWN_PATHS, DRAWN_WORDS, HEADS, EXAMPLES)
HEAD_CHARACTERS: Final = 160
"""of a text in ``sample_head``, and in lists of samples"""
EXAMPLE_RANKS: Final = 1000
"""paths with rows in ``path_example``"""
EXAMPLES_EACH: Final = 60
EXAMPLE_SEED: Final = 0
"""the seed of the draw that ``path_example`` holds"""
