"""The engine worker: the process that holds models, and the API's client for it."""
