"""Starts, watches, verifies and stops one TorchServe, as the plan in its run directory says."""

VERSION = "1.0.0"
"""Of the kit (CHANGELOG.md)."""
