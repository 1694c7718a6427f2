"""Flow charts: layout, modules and ribbons, the difference of two flows, and the flow of single tokens."""
