"""The page server: Streamlit behind limits of connections, guard, login and cached static files."""
