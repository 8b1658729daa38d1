"""`make tune`: the plan that serves the most within a latency limit, found here and proven live."""
