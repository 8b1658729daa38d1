"""Compares the plan with the live workers: evidence is collected first, then judged by pure functions."""

from server.verify.registry import Result, judge
from server.verify.report import render, render_summary
from server.verify.run import verify, verify_instance

__all__ = ["Result", "judge", "render", "render_summary", "verify", "verify_instance"]
