"""What a stranger, a crowd or a fault can do to a server, and whether it stands."""
