"""Judges what a build made: figures beside FP32, verdicts on them, and INT8's recipes in turn."""
