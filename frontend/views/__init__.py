"""One file a view; each has ``draw(selection)`` and answers the question in its title."""
