"""How each archive is made: definition, weights, labels, canary, packing."""
