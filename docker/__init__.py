"""What runs first inside the container; the rest of this folder are files."""
