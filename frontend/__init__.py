"""The page: Streamlit views over the REST API. Imports neither engine nor backend."""
