"""The table of speed targets, its rows as data."""
