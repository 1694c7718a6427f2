"""Commands that answer about runs: tables, figures, reports, the agreement of two."""
