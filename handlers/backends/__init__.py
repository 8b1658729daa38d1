"""What can compute a model: catalogue.py says what there is, and each has a loader in a file of its own."""
