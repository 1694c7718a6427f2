"""The dream view."""
