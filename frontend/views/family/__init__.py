"""Family view."""
