"""What is right: expected answers, computed away from the server, and the judgement of those that came."""
