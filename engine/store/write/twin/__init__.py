"""The paths of an untrained twin: counted, kept, and added to a run that was sealed without them."""
