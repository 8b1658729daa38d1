"""Compares the plan with the live workers: evidence is collected first, then judged by pure functions."""

from server.verify.registry import Result, judge, verify, verify_instance
from server.verify.report import render, render_summary

__all__ = ["Result", "judge", "render", "render_summary", "verify", "verify_instance"]
