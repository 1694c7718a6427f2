"""What views share: address, selection, widgets, downloads, tables."""
