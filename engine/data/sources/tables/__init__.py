"""Sources of samples that are rows of tables: Parquet, Arrow, saved Hugging Face data sets, CSV."""
