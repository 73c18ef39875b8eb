"""`soak probe`: the probe daemon of a run or of a host alone, or a look at what this machine can give."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


def probe(
    plan: Annotated[
        Path | None, typer.Argument(help="Plan of a host that only probes; or of a run.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; with a plan: where to make it.", resolve_path=True),
    ] = None,
    run_id: Annotated[
        str, typer.Option(help="With a plan: the run to join; else one that is announced.")
    ] = "",
    start: Annotated[str, typer.Option(help="With --run-id: when that run starts.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Read, print, and end.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(help="With --once alone: the folder whose drive is looked at; else this one."),
    ] = None,
) -> None:
    """Read every probe of a plan once a second."""
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError

    if directory is not None and not (once and plan is None and run_dir is None):
        raise PlanError("--directory: goes with --once alone; a plan's probes name their own")
    if once:
        from soak.cli import _once
        from soak.daemons.probe import build

        clock = SystemClock()
        configs = _configs(plan, run_dir) if plan or run_dir else _all_here(directory or Path())
        _once.show(_once.look(build(configs, clock), clock), _once.plain_console())
        _leave(0)
    from soak.service.signals import stop_event

    if plan is not None:
        from soak.cli._probe_host import run_host

        _leave(run_host(plan, run_dir, run_id, start, stop_event(), SystemClock()))
    if run_dir is None:
        raise PlanError("soak probe needs a PLAN, --run-dir DIR, or --once")
    from soak.daemons.probe import run

    _leave(run(run_dir, stop_event(), SystemClock()))


def _leave(code: int) -> NoReturn:
    """End without waiting for a probe's thread that may hang in the kernel; the journal is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _configs(plan: Path | None, run_dir: Path | None) -> dict[str, Any]:
    from soak.cli._probe_host import load_any_plan
    from soak.store.run_folder import RunFolder, read_any_plan

    found = load_any_plan(plan) if plan else read_any_plan(RunFolder(run_dir or Path()))
    return found.probes


def _all_here(directory: Path) -> dict[str, Any]:
    """Return every probe there is with its defaults, and this directory where one is wanted."""
    from soak.core import plugins

    found = {}
    for name in plugins.names("probes"):
        kind = plugins.load("probes", name).Config
        wants = "directory" in kind.__dataclass_fields__
        found[name] = kind(directory=str(directory.absolute())) if wants else kind()
    return found


command = probe
