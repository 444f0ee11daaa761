"""How handlers are called: on the loop, on threads, in processes. Independent of the member."""
