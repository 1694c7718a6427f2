"""What every request passes: security, limits, strict JSON, paging, uploads."""
