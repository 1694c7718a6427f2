"""Charts that only one family of models has."""
