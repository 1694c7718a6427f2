"""The page's own components: a few lines of local JavaScript where Streamlit's charts cannot do it.

``explorer``: a sample and its small flow picture side by side, linked by the pointer.
``wall``: patches, thumbnails, tokens in context that open a sample.
"""
