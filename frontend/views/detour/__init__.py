"""The detour view."""
