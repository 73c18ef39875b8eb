"""`soak probe`: the probe daemon of a run, or a look at what this machine can give."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from soak.core.model import Column
    from soak.core.ports import Clock


def probe(
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Read twice, print, and end.")] = False,
    directory: Annotated[
        Path, typer.Option(help="With --once and no run: the folder whose drive is looked at.")
    ] = Path(),
) -> None:
    """Read every probe of the run's plan once a second."""
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError

    if once:
        configs = _of_plan(run_dir) if run_dir else _all_here(directory)
        _print_once(configs, SystemClock())
        _leave(0)
    if run_dir is None:
        raise PlanError("soak probe needs --run-dir DIR, or --once")
    from soak.daemons.probe import run
    from soak.service.signals import stop_event

    _leave(run(run_dir, stop_event(), SystemClock()))


def _leave(code: int) -> NoReturn:
    """End without waiting for a probe's thread that may hang in the kernel; the journal is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _of_plan(run_dir: Path) -> dict[str, Any]:
    from soak.store.run_folder import RunFolder, read_plan

    return read_plan(RunFolder(run_dir)).probes


def _all_here(directory: Path) -> dict[str, Any]:
    """Return every probe there is with its defaults, and this directory where one is wanted."""
    from soak.core import plugins

    found = {}
    for name in plugins.names("probes"):
        kind = plugins.load("probes", name).Config
        wants = "directory" in kind.__dataclass_fields__
        found[name] = kind(directory=str(directory.absolute())) if wants else kind()
    return found


def _print_once(configs: dict[str, Any], clock: Clock) -> None:
    from rich.console import Console
    from rich.table import Table

    from soak.core.units import SECOND_NS
    from soak.daemons.probe import Panel, build

    logging.getLogger("soak.daemons.probe").setLevel(logging.ERROR)  # the table says it
    panel = Panel(build(configs, clock), clock)
    begin_ns = clock.mono_ns()
    _, events = panel.read(begin_ns)
    clock.sleep_until(begin_ns + SECOND_NS)
    samples, later = panel.read(begin_ns + SECOND_NS)
    panel.close()
    table = Table("metric", "labels", "value", "unit", box=None, pad_edge=False)
    table.columns[2].justify = "right"
    for column, value in samples:
        table.add_row(column.metric, _labels(column), _number(value), column.unit)
    console = Console()
    console.print(table)
    for event in (*events, *later):
        if "probe" in event.fields:
            console.print(f"{event.fields['probe']}: {event.fields['reason']}", soft_wrap=True)


def _labels(column: Column) -> str:
    return " ".join(f"{key}={value}" for key, value in column.labels)


def _number(value: float) -> str:
    return "-" if value != value else f"{value:,.6g}"  # noqa: PLR0124  # NaN: nothing in this second


command = probe
