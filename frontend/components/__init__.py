"""Streamlit components in local JavaScript, for interactions that Streamlit's widgets and charts do not support.

``explorer``: a sample linked with its flow on hover. ``wall``: patches, thumbnails or texts that open a sample.
``keys``: keyboard navigation of the whole page.
"""
