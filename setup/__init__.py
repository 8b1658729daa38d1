"""Brings a machine from bare Python to a checked environment, with the standard library alone."""
