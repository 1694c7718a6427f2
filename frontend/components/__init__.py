"""Streamlit components in local JavaScript, for what Streamlit's widgets and charts cannot do.

``explorer``: a sample linked with its flow by the pointer. ``wall``: patches, thumbnails or texts that open a sample.
``keys``: keyboard navigation of the whole page.
"""
