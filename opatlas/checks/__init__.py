"""Data tests of a database: each check is a file, and says which rows it concerns and why (docs/check.md)."""
