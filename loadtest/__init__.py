"""What load, and what came out."""
