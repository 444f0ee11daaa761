"""The app: handlers, options, and the ways to run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, Unpack, get_args

from perkey.app_options import AppKeywords, AppOptions, belongs, checked_app, owner_of
from perkey.errors import ConfigError, NotStarted
from perkey.handler_types import RunOptions, Topics, as_consume
from perkey.options import HandlerOptions, check_budgets, check_names, checked, topics_of
from perkey.routing import Routes
from perkey.types import RunReport, StopMode

if TYPE_CHECKING:  # declaring an app loads no client and no loop
    from perkey.runtime.run.result_stream import ResultStream


class RunHandle(Protocol):
    """The handle of a run, in this process, on Spark or in a member: `app.start()` returns one."""

    @property
    def over(self) -> bool:
        """Whether the run has ended."""

    def start(self) -> None:
        """Start; returns once it runs."""

    def wait(self, timeout_s: float | None = None) -> RunReport:
        """Wait for the end and its report; TimeoutError if it did not come in time."""

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the run."""

    def pause(self, topic: str | None) -> None:
        """Start no records of this topic, or of any."""

    def resume(self, topic: str | None) -> None:
        """Start records of this topic again, or of all."""

    def snapshot(self) -> dict[str, Any]:
        """The current state as JSON-able data."""

    def open_results(self) -> ResultStream:
        """The results from now on, for one reader."""

    def install_signals(self) -> None:
        """Make SIGINT and SIGTERM stop the run; a no-op off the main thread."""

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""


class App:
    """One consumer group with its handlers.

    Every option is described in docs/options.md; times are in seconds, sizes in bytes. Raises
    ConfigError, in one line that names the option and the fix, for everything that can be checked
    here.
    """

    def __init__(
        self, group: str, kafka: Mapping[str, Any], **options: Unpack[AppKeywords]
    ) -> None:
        check_names("App", options, AppOptions)
        self._options = checked_app(AppOptions(group, kafka, **options))  # type: ignore[arg-type]  # kafka is checked, then copied
        self._handlers: list[HandlerOptions] = []
        self._run: RunHandle | None = None
        self._stream: ResultStream | None = None
        self._paused: set[str | None] = set()
        #: a reader gets the results of the next run, or of the current one
        self._handing_over = threading.RLock()
        #: the value of the lifespan while the app runs
        self.state: Any = None

    def __repr__(self) -> str:
        # Never the kafka dictionary: it holds secrets.
        names = ", ".join(handler.name for handler in self._handlers)
        return f"<App group={self._options.group!r} handlers=[{names}]>"

    # -- declaring ---------------------------------------------------------------------------------

    @as_consume
    def consume(self, topics: Topics, **options: Any) -> Callable[[Any], Any]:
        """Handle the records of these topics with the decorated function, which is not changed.

        A name that starts with ^ is a pattern; a literal name beats a pattern.
        """
        names = topics_of("@app.consume", topics)
        check_names("consume", options, HandlerOptions)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            handler = checked(HandlerOptions(function, names, **options))
            if self._run is not None and not self._run.over:
                raise ConfigError(
                    f"@app.consume on {handler.name}: the app is running and would never call it: "
                    "decorate before the app starts, or create a second App"
                )
            Routes([*self._handlers, handler])  # refuses a topic that has a handler already
            check_budgets([*self._handlers, handler])
            self._handlers.append(handler)
            belongs(function, self)
            return function

        return decorate

    @property
    def handlers(self) -> tuple[HandlerOptions, ...]:
        """The handlers, in the order of their decoration."""
        return tuple(self._handlers)

    @property
    def options(self) -> AppOptions:
        """The options of the app."""
        return self._options

    def serve_at(self, **served: Any) -> None:
        """Set options from the command line, before the app runs."""
        self._options = checked_app(replace(self._options, **served))

    # -- running -----------------------------------------------------------------------------------

    def run(self, **how: Unpack[RunOptions]) -> RunReport:
        """Run until stopped, or `until="drained"`.

        SIGINT and SIGTERM stop it when this is the main thread. `sink`, on a fleet, is the
        `perkey.spark.DeltaTable` or `IcebergTable` for results as rows. Raises ConfigError for bad
        configuration, before anything is consumed.
        """
        run = self._prepare(how)
        run.install_signals()
        try:
            run.start()
            from perkey.runtime.logs import say_how_to_see_more

            say_how_to_see_more()
            return run.wait()
        finally:
            run.restore_signals()

    def main(self, **how: Unpack[RunOptions]) -> NoReturn:
        """`run()`, and exit with its code: the last line of a script.

        A failed run, or a ConfigError, is one line on stderr.
        """
        from perkey.runtime.run.exits import exit_with

        exit_with(lambda: self.run(**how))

    def start(self, **how: Unpack[RunOptions]) -> RunHandle:
        """`run()` in the background; the handle has `stop()`, `wait()` and `snapshot()`."""
        run = self._prepare(how)
        run.start()
        return run

    async def serve(self, *, until: Literal["drained"] | None = None) -> RunReport:
        """Run on the caller's event loop, without signal handlers; cancelling it drains."""
        try:
            with self._handing_over:
                self._check_startable(until)
                from perkey.runtime.run.run import Run

                run = Run(self, until=until, stream=self._stream)
                self._taken_over(run)
            return await run.serve()
        except Exception as error:  # a task that is never awaited would fail silently
            from perkey.runtime.logs import event

            text = f"{type(error).__name__}: {error}"
            event("error", "app.serve() failed", group=self._options.group, error=text)
            raise

    def _prepare(self, how: RunOptions) -> RunHandle:
        check_names("run", how, RunOptions)
        engine, until = how.get("engine", "local"), how.get("until")
        if engine not in ("local", "spark"):
            raise ConfigError(f'engine={engine!r} is not known: choose "local" or "spark"')
        fleets: dict[str, Any] = {
            name: how.get(name) for name in ("members", "master", "spark", "conf", "sink")
        }
        with self._handing_over:
            self._check_startable(until)
            run: RunHandle
            if engine == "spark":
                from perkey.spark.fleet.settings import fleet_settings

                settings = fleet_settings(**fleets)
                from perkey.spark.fleet.callbacks import refuse_results
                from perkey.spark.fleet.run import FleetRun

                refuse_results(self._options, self._stream)
                run = FleetRun(self, settings, until=until)
            else:
                for name, value in fleets.items():
                    if value is not None:
                        raise ConfigError(f'{name} requires engine="spark": omit it')
                from perkey.runtime.run.run import Run

                run = Run(self, until=until, stream=self._stream)
            self._taken_over(run)
        return run

    def _check_startable(self, until: str | None) -> None:
        if until not in (None, "drained"):
            raise ConfigError(f'until={until!r} is not known: give "drained", or omit it')
        if not self._handlers:
            raise ConfigError(
                "the app has no handler: decorate a function with @app.consume(TOPIC)"
            )
        if self._run is not None and not self._run.over:
            raise ConfigError("the app is already running: stop it first, or create a second App")

    def _taken_over(self, run: RunHandle) -> None:
        """The run takes over the results' stream, and the pauses set before it."""
        self._run = run
        if self._stream is not None:
            from perkey.runtime.run.result_stream import as_handled

            self._stream.as_handled = as_handled(self._handlers)
        self._stream = None
        for topic in self._paused:
            run.pause(topic)

    # -- in a member of a fleet --------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # Shipped to executors: the declarations. Callbacks stay, and run, on the driver.
        options = replace(
            self._options, on_result=None, on_commit=None, on_assign=None, on_revoke=None
        )
        return {"options": options, "handlers": self._handlers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options, self._handlers = state["options"], state["handlers"]
        self._run, self._stream, self._paused, self.state = None, None, set(), None
        self._handing_over = threading.RLock()
        for handler in self._handlers:
            if owner_of(handler.function) is None:
                belongs(handler.function, self)

    def adopt(self, run: RunHandle | None, options: AppOptions) -> None:
        """Become the app of this member: for the engine that hosts it."""
        self._run, self._options = run, options

    # -- while it runs -----------------------------------------------------------------------------

    def stop(self, mode: StopMode = "in_flight") -> None:
        """End the run; any thread.

        "in_flight" finishes running calls, "buffered" also buffered records, "now" only commits.
        """
        if mode not in get_args(StopMode):
            raise ConfigError(f'stop({mode!r}): choose "in_flight", "buffered" or "now"')
        if self._run is not None:
            self._run.stop(mode)

    def pause(self, topic: str | None = None) -> None:
        """Start no records of this topic, or of any; membership and commits continue."""
        self._paused.add(topic)
        if self._run is not None:
            self._run.pause(topic)

    def resume(self, topic: str | None = None) -> None:
        """Start records of this topic again, or of all."""
        if topic is None:
            self._paused.clear()
        self._paused.discard(topic)
        if self._run is not None:
            self._run.resume(topic)

    def results(self) -> ResultStream:
        """The result of every record from now on, for one reader; ends when the app ends.

        Raises ConfigError on a fleet: its results go to `output=` or `sink=`.
        """
        from perkey.runtime.run.result_stream import ResultStream, as_handled

        with self._handing_over:
            if self._run is not None and not self._run.over:
                stream = self._run.open_results()
                stream.as_handled = as_handled(self._handlers)
                return stream
            if self._stream is not None and not self._stream.closed:
                raise ConfigError("app.results() is already being read; only one reader is allowed")
            self._stream = ResultStream()
            return self._stream

    def snapshot(self) -> dict[str, Any]:
        """The current state as JSON-able data; docs/snapshot.md documents every field."""
        if self._run is None:
            raise NotStarted("the app is not running: call app.run(), app.start() or app.serve()")
        return self._run.snapshot()


def app_of(function: Any) -> App | None:
    """The app that last decorated this function, in this process."""
    app = owner_of(function)
    return app if isinstance(app, App) else None
