"""One file a part of the API; each has a ``router``."""
