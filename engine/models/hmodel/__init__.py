"""H-Model: layers that choose which layers receive their output."""
