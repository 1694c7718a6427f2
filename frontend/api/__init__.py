"""HTTP client of the REST API; the only package that imports httpx."""
