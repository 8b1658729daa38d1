"""The ladder: one setting after the other put on a server, and what each is worth on this host."""
