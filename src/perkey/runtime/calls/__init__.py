"""How handlers are called: on the loop, on threads, in processes. Independent of the member.

`executors` chooses among `aio`, `threads` and `processes`; `invoke` makes one call, `batch_calls`
one of many records. `deadlines` ends what takes too long, `pace` measures how fast calls end.
"""
