"""How load arrives: scenarios in YAML, what a command line changes of them, and the fields of experiments."""
