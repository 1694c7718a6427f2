"""The runs of the data folder: registry, answers, files from elsewhere."""
