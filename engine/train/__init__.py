"""Training: recipes, corpora, augmentation, the loop, what each family adds, checkpoint cards."""
