"""Dead letters: their headers, which may be replayed, and how, for `perkey dlq`."""
