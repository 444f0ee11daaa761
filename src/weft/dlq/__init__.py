"""Dead letters: what their headers say, which may go back, and how they do, for `weft dlq`."""
