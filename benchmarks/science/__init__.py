"""Claims of the papers beside what we measured: a module a paper, and the pages of ``docs/science`` from their rows."""
