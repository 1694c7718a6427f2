"""Foundation of the engine: errors, files, records, routing rules, progress, validation. Imports nothing above it."""
