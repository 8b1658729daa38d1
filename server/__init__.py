"""Starts, watches, verifies and stops one TorchServe, as the plan in its run directory says."""
