"""Compares the plan with the live workers: evidence is collected first, then judged by pure functions."""

from server.verify.registry import Result, judge
from server.verify.report import render
from server.verify.run import verify

__all__ = ["Result", "judge", "render", "verify"]
