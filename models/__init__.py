"""How each archive is made: definition, weights, labels, example, packing."""
