"""Start and Try it views."""
