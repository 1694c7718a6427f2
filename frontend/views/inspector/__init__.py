"""The inspector: what was clicked, in a column at the right."""
