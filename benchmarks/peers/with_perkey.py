"""Perkey with its defaults: an async handler, order by key."""

from work import work

import perkey

task = work()
app = perkey.App(
    group=task.job["group"],
    kafka={"bootstrap.servers": task.job["bootstrap"], "session.timeout.ms": 6000},
)


@app.consume(task.job["topic"], concurrency=task.job["concurrency"])
async def handle(record: perkey.Record) -> None:
    """One record."""
    await task.call_async(record.offset, record.value)


if __name__ == "__main__":
    app.main()
