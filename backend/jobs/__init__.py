"""Long jobs: a durable queue in one SQLite file.

``table.py`` is the queue with its leases and events, ``runner.py`` executes jobs inside a worker, ``service.py`` is
what the API offers (submit, watch, cancel, fetch).
"""
