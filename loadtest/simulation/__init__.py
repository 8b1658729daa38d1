"""What a server would do, in virtual time: any plan at any rate in milliseconds, and what none can beat."""
