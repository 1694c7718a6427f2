"""The module bank: one routed step in several executions that agree; see README.md."""
