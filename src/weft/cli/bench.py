"""`weft bench`: the benchmarks of the repository, where this Weft was installed from one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from weft.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def there() -> bool:
    """Whether this is a checkout: an installed package has no benchmarks."""
    return (ROOT / "benchmarks" / "run.py").is_file()


def bench(
    only: Annotated[
        list[str] | None, typer.Option(help="A workload or a group of them; several times.")
    ] = None,
    scale: Annotated[float, typer.Option(help="Times the number of records.")] = 1.0,
    bootstrap: Annotated[
        str | None, typer.Option(help="A broker of yours instead of one for the run.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Exit 1 when a limit is missed.")] = False,
) -> int:
    """Measure Weft beside bare sleeps and the Java Parallel Consumer; keeps the JSON.

    Example: weft bench --only headline --scale 0.1
    """
    if not there():
        raise ConfigError(
            "the benchmarks are in Weft's repository, not in the installed package: in a checkout "
            "run `make bench`"
        )
    sys.path.insert(0, str(ROOT))
    from benchmarks.run import Options, OptionsError, run

    try:
        return run(Options(only=tuple(only or ()), scale=scale, bootstrap=bootstrap, check=check))
    except OptionsError as error:
        raise ConfigError(str(error)) from None
