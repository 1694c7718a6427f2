"""Questions to a run file: ``RunFile`` below, a module a topic above it, the façade ``Run`` on top."""
