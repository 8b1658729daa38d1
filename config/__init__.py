"""Which number, and why: the machine is read, a plan is decided, config.properties is rendered from it."""
