"""Sealing on many: the shards of a run become its parts, each by a worker of its own (``seal_in_parts``)."""
