"""Answer types of the questions to a run, one module a topic."""
