"""H-Model: layers that choose where their output goes."""
