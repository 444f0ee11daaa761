"""How handlers are called: on the loop, on threads, in processes. Knows nothing of the member."""
