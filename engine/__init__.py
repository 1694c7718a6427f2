"""Models, traces, run files, dreams, edits and jobs. Knows no web."""
