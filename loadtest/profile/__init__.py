"""Two servers side by side under load: why is one of them faster, without hardware counters."""
