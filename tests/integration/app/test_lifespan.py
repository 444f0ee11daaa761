"""`lifespan` and `app.state`: opened once, on the handlers' loop, and closed at the end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager

import pytest
from tests.support.waiting import wait_for

import perkey


def make(kafka, lifespan, kind="async"):
    source = kafka.topic()
    kafka.fill(source, [b"x", b"y"])
    app = kafka.app(lifespan=lifespan)
    states = []

    def plain(record):
        states.append(app.state)

    async def waits(record):
        states.append(app.state)
        states.append(asyncio.get_running_loop())

    app.consume(source)(plain if kind == "threads" else waits)
    return app, states


def test_an_async_lifespan_is_opened_on_the_handlers_loop(kafka):
    """Its value is `app.state` while the app runs, and None after it."""
    steps = []

    @asynccontextmanager
    async def lifespan():
        steps.append(asyncio.get_running_loop())
        yield "resource"
        steps.append("closed")

    app, states = make(kafka, lifespan)
    assert kafka.drain(app).done == 2
    loop = steps[0]
    assert states == ["resource", loop, "resource", loop]
    assert steps[1:] == ["closed"]
    assert app.state is None


@pytest.mark.parametrize("opens", [lambda app, more: None, lambda *, settings: None])
def test_a_lifespan_that_needs_more_than_the_app_is_refused(kafka, opens):
    """It is bad input (exit code 2), as what returns no context manager; not a failed lifespan."""
    with pytest.raises(
        perkey.ConfigError, match=r"requires (app, more|settings): it gets the app, or"
    ):
        make(kafka, opens)


@pytest.mark.parametrize("kind", ["async", "threads"])
def test_a_plain_lifespan_may_take_the_app(kafka, kind):
    """With an argument, as FastAPI's; for plain handlers too."""
    steps = []

    @contextmanager
    def lifespan(app):
        steps.append(app)
        yield 7
        steps.append("closed")

    app, states = make(kafka, lifespan, kind)
    assert kafka.drain(app).exit_code == 0
    assert states[0] == 7
    assert steps == [app, "closed"]


@pytest.mark.parametrize("how", ["run", "serve"])
def test_a_lifespan_that_fails_to_open_ends_the_run_before_anything_is_consumed(kafka, how):
    """The error names the lifespan and what it raised; nothing was handled."""

    @asynccontextmanager
    async def lifespan():
        raise OSError("no database")
        yield

    app, states = make(kafka, lifespan)
    with pytest.raises(perkey.FatalError, match=r"lifespan.*OSError: no database"):
        if how == "run":
            app.run(until="drained")
        else:
            asyncio.run(app.serve(until="drained"))
    assert states == []
    assert app.state is None
    with pytest.raises(perkey.FatalError):  # not "already running"
        app.run(until="drained")


@pytest.mark.parametrize("kind", ["async", "threads"])
@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt()])
def test_a_lifespan_that_exits_fails_to_open(kafka, kind, error):
    """It ends neither the process, with its own code, nor the loop that the run still needs."""

    @contextmanager
    def lifespan():
        raise error
        yield

    app, states = make(kafka, lifespan, kind)
    with pytest.raises(perkey.FatalError, match=f"lifespan failed to open: {type(error).__name__}"):
        app.run(until="drained")
    assert states == []


@pytest.mark.parametrize("error", [OSError("too late"), SystemExit("too late")])
def test_a_lifespan_that_fails_to_close_is_logged(kafka, caplog, error):
    """The records are committed already; the run ends as it would have."""

    @asynccontextmanager
    async def lifespan():
        yield
        raise error

    app, _ = make(kafka, lifespan)
    assert kafka.drain(app).exit_code == 0
    assert "too late" in caplog.text


def test_serve_opens_and_closes_it_on_the_callers_loop(kafka):
    """Also when serving is cancelled."""
    steps = []

    @asynccontextmanager
    async def lifespan(app):
        steps.append(asyncio.get_running_loop())
        try:
            yield 1
        finally:
            steps.append(asyncio.get_running_loop())

    app, states = make(kafka, lifespan)

    async def main():
        serving = asyncio.create_task(app.serve())
        await asyncio.to_thread(wait_for, lambda: len(states) == 4)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert steps == [loop, loop]
    assert states == [1, loop, 1, loop]
    assert app.state is None


def test_something_that_is_no_context_manager_is_refused(kafka):
    """The message says what a lifespan is."""
    app, _ = make(kafka, lambda: 7)
    with pytest.raises(perkey.ConfigError, match="context manager"):
        app.run(until="drained")
