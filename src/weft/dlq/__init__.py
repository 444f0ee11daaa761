"""Dead letters: their headers, which may be replayed, and how, for `weft dlq`."""
