"""The engine worker: the process that holds models, and how the API talks to it."""
