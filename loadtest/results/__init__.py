"""What is kept: one folder format for every experiment, and the statistics of what is in it."""
