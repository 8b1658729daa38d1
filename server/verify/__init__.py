"""Compares the plan with the live server by one table of rows; what is live is collected first."""

from server.verify.compare import DIFFERS, Finding, Result, verify, verify_instance
from server.verify.report import render

__all__ = ["DIFFERS", "Finding", "Result", "render", "verify", "verify_instance"]
