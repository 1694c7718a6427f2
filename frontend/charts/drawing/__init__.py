"""What charts share: theme, palette, numbers, text, redrawing, print."""
