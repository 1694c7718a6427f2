"""Edited routes measured: what changes when tokens go elsewhere, for every ``Traceable`` model.

``prepared``: inputs for many passes · ``measure``: the effect beside the unchanged model · ``sweep``: each module
banned in turn · ``gate_effects``: interventions of Directional Routing · ``reroute_request``: a job's request.
"""
