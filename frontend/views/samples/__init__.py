"""Sample and Map views."""
