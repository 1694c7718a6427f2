"""The format of a run file: schema, columns, weight codes, soft tables, filters, verification, shards."""

SCHEMA_VERSION = 13
"""the only supported version of a run file: runs of other versions must be traced again"""
