"""Sources of samples, one file a kind, all opened by ``tokenpaths.engine.data.datasets.open_dataset``."""
