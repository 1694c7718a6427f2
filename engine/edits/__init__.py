"""Edited routes measured: what changes when tokens go elsewhere, for every ``Traceable`` model.

``prepared``: inputs for many passes · ``measure``: the effect beside the unchanged model · ``sweep``: each module
banned in turn · ``gate_effects``: interventions of Directional Routing · ``gate_scan``: its heads, uniform gates and
gain by position over many texts · ``gate_words``: one word's logit and probability · ``reroute_request``: a job's
request.
"""
