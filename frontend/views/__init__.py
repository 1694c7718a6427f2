"""One module or folder per view, each with ``draw(selection)``; helpers shared by several views are on this level."""
