"""The format of a run file: schema, columns, weight codes, soft tables, filters, verification, shards."""
