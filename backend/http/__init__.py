"""HTTP plumbing shared by all routes: security, limits, strict JSON, paging, uploads."""
