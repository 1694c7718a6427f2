"""Long jobs: the registry and one file a kind."""
