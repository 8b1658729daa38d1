"""What is asked, in which order: `next_block(kept)` and `judge(kept)`, no base class."""
