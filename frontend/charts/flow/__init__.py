"""Flow charts: layout, circles and ribbons, the contrast of two flows, and the flow of single tokens."""
