"""The page server: Streamlit behind host check, login and cached static files."""
