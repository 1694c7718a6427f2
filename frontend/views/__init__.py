"""One module or folder per view, each with ``draw(selection)``; what several views share is on this level."""
