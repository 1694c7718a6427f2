"""The web page: Streamlit views over the REST API, and the charts and figures that other programs use too."""
