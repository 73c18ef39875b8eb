"""`soak check`: everything that can be known before the first message."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from soak.core.plan import Plan
    from soak.core.plan_probe import AnyPlan
    from soak.core.plan_text import PlanFile


def check(
    plan: Annotated[Path, typer.Argument(help="The plan, a YAML file.")],
    show: Annotated[
        bool,
        typer.Option("--show", help="Print the plan with every default; all else goes to stderr."),
    ] = False,
    scale: Annotated[str, typer.Option(help="As of `soak run`.")] = "",
    duration: Annotated[str, typer.Option(help="As of `soak run`.")] = "",
    drives: Annotated[
        bool, typer.Option("--drives", help="Measure the brokers' drives that this host has.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="With --drives: the run whose folder keeps what was found.")
    ] = None,
) -> None:
    """Check a plan, this machine and the cluster; exit 2 with file, line and key of the first fault."""
    with _unlogged():
        _check(plan, show, scale, duration, drives, run_dir)


def _check(
    plan: Path, show: bool, scale: str, duration: str, drives: bool, run_dir: Path | None
) -> None:
    from soak.cli import _checks, _drives, _host_check
    from soak.cli._probe_host import host_plan
    from soak.core.errors import PlanError

    if run_dir is not None and not drives:
        raise PlanError("--run-dir: is where --drives keeps what it finds, and goes with it")
    host = host_plan(plan)
    if host is not None:  # it knows no more of the run
        for option, value in {"--scale": scale, "--duration": duration}.items():
            if value:
                raise PlanError(f"{option}: a host that only probes has no load to cut")
        with _after(host[0] if show else None):
            if drives:
                _drives.show(host[0], run_dir)
            else:
                _host_check.check(plan, *host)
        return
    plan_file = _checks.cut(_checks.load_plan(plan), scale, duration)
    _checks.check_here(plan_file, Path(plan_file.plan.run_directory))
    if plan_file.plan.lab is None:
        _checks.check_cluster(plan_file)
    with _after(plan_file.plan if show else None):
        _tell(plan_file, drives, run_dir)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what clients log of themselves from the terminal: a message names the cause, once."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _after(plan: AnyPlan | None) -> Iterator[None]:
    """Print the plan, if any, and leave stdout to it alone: what is told of it goes to stderr then."""
    from soak.cli._shown import shown

    if plan is None:
        yield
        return
    print(shown(plan), end="", flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _tell(plan_file: PlanFile, drives: bool, run_dir: Path | None) -> None:
    """Print what there is to know of a plan that was not refused."""
    from soak.cli import _drives, _durability, _forecast, _machine
    from soak.cli._excess import warnings
    from soak.cli._leaders import untold_apart
    from soak.cli._load_checks import table_of
    from soak.cli._probe_checks import looked
    from soak.cli._ship_check import unshipped
    from soak.core import durability
    from soak.core.clock import SystemClock
    from soak.core.load_text import soak_rate_text
    from soak.core.units import format_duration
    from soak.daemons.context import connect

    clock = SystemClock()
    found, name = plan_file.plan, plan_file.document.name
    where = "a lab broker on this machine" if found.lab else "the cluster that it names"
    lengths, table = found.phases, table_of(plan_file)
    print(
        f"{name}: good. {soak_rate_text(found, table)} against {where}, "
        f"warm-up {format_duration(lengths.warm_up)}, soak {format_duration(lengths.soak)}."
    )
    _tell_of_windows(found)
    if found.lab is None:
        promised = durability.named(_durability.look(found, plan_file.document))
        print(f"Durability: {promised}; `soak audit {name}` says why.")
        for lacking in (*looked(found, clock), *untold_apart(found, connect(found, clock))):
            print(f"Warning: {lacking}.")
    foreseen = _forecast.look(found, table, Path(found.run_directory))
    print("\n".join(foreseen.lines))
    beyond = (*foreseen.warnings, *warnings(plan_file), *_unused(found), *_untold(found))
    for warning in (*beyond, *unshipped(found.ship, clock)):
        print(f"Warning: {warning}.")
    print("\n".join(_machine.told([] if drives else _drives.beforehand(found))))
    if drives:
        _drives.show(found, run_dir)


def _unused(plan: Plan) -> list[str]:
    """Return what of the plan will change nothing."""
    if not (plan.topic.use_existing and plan.topic.settings):
        return []
    names = ", ".join(plan.topic.settings)
    return [f"topic.settings ({names}) are not set: a topic that is there keeps its own"]


def _untold(plan: Plan) -> list[str]:
    """Return that nobody will be told, if so: a soak runs while its people sleep."""
    if plan.sinks:
        return []
    return ["sinks is empty: nobody is told of what is found, which stands in the run folder alone"]


def _tell_of_windows(plan: Plan) -> None:
    from soak.daemons.catch_up import never_begins

    for number, window in enumerate(plan.phases.windows):
        if never_begins(plan, window):
            print(f"phases.windows.{number} never begins: the soak is too short for it.")


command = check
