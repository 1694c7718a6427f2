"""What runs of a million tokens or more hold besides: answers that take long, and tables of what lies far apart."""
