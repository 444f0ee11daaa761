"""Weft: one Python handler, many calls at once, every promise of a single-threaded consumer."""
