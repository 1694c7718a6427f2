"""The job ``gates``: what heads and gates of Directional Routing are worth.

``gates_request``: what can be asked for · ``gates_job``: how it is measured.
"""
