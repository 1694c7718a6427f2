"""Intake of runs from elsewhere: their base tables are read in a confined process and written into a file of ours."""
