"""Edited routes: what changes when tokens go elsewhere.

``values`` edits as plain values · ``controls`` how a family offers them · ``plan`` checked against a model ·
``apply`` between a router's scores and its Decision · ``prepared`` inputs for many passes · ``effect`` what
changed beside the unchanged run · ``sweep`` each module banned in turn · ``job`` both as long jobs ·
``experts`` the same for Hugging Face mixtures of experts.
"""
