"""One window of one system with its evidence, the rules that doubt it, and who lets systems take turns."""
