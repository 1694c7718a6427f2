"""Where samples come from: one file a kind of source, all behind ``engine.datasets.open_dataset``."""
