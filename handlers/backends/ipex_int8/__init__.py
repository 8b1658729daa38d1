"""Static INT8 with IPEX: recipes, which operators are to blame, and the conversion in the worker."""
