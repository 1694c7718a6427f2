"""Building blocks of all charts: palette, theme, number formats, text, redrawing, print, tables."""
