"""Streamlit components in local JavaScript, for interactions that Streamlit's widgets and charts do not support.

``explorer``: a sample linked with its flow on hover. ``wall``: patches, thumbnails or texts that open a sample.
``keys``: keyboard navigation of the whole page.
"""


def component_key(key: str) -> str:
    """``key`` without ``__``, which Streamlit refuses in keys of components: a run, a label or the words that are
    searched for (``__init__``) may have it. Unlike keys stay unlike.

    >>> component_key("samples_runs__of_me"), component_key("samples_runs_-of_me")
    ('samples_-runs_-_-of_-me', 'samples_-runs_--of_-me')
    """
    return key.replace("_", "_-")
