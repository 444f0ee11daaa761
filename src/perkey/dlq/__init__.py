"""Dead letters: their headers, which may be replayed, and how, for `perkey dlq`.

`letters` reads the headers, `plan` decides which letters go back, `replay` produces them.
`not_back` counts those that are not replayed; `refails` stops a key whose letter failed again.
"""
