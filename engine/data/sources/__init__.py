"""Where samples come from: one file a kind of source, all behind ``tokenpaths.engine.data.datasets.open_dataset``."""
