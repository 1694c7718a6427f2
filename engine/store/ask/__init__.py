"""Questions to a run file: one module a topic, ``Run`` in front of them."""
