"""Flow pictures: layout, ribbons, contrast, token flow."""
