"""Work view: sections beside the distributions of compute and reuse, and such that other views draw."""
