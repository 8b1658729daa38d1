"""What is done to a server behind its door, one fault at a time under load, and what clients see of it."""
