"""A recorder for any PyTorch model: routers found, decisions recorded while it runs."""
