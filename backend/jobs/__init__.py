"""Long jobs: a durable queue in one SQLite file, and those who submit, run and watch them.

``table.py`` is the queue with its leases and events, ``runner.py`` works on jobs inside a worker, ``service.py`` is
what the API offers, ``watch.py`` wakes those who listen to a job.
"""
