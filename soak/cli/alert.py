"""`soak alert`: the daemon that tells people what was found, or a test whether it reaches them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def alert(
    plan: Annotated[Path | None, typer.Argument(help="With --test: a plan.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run.", resolve_path=True)
    ] = None,
    owed: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNS", help="Tell what the runs below a folder owe after their end, then end."
        ),
    ] = None,
    telling: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN", help="Whose `sinks` and `alerts` count instead of those of the run."
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option("--test", help="Send one message to each sink now, say how it went, end."),
    ] = False,
) -> None:
    """Send what the findings of a run call for, each message once.

    With --owed it goes on for a day at most.
    Exit with --test: 0 every sink took it, 1 one did not, 2 bad plan.
    """
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError

    if test:
        from soak.cli import _alert_test

        sinks = _alert_test.sinks_of(plan, run_dir)
        raise typer.Exit(0 if _alert_test.try_all(*sinks, SystemClock()) else 1)
    if (run_dir is None) == (owed is None) or plan is not None:
        raise PlanError("soak alert needs --run-dir DIR, --owed RUNS, or a PLAN and --test")
    from soak.cli import _dying
    from soak.daemons import alert as daemon
    from soak.daemons import alert_owed
    from soak.service.signals import stop_event

    if owed is not None:
        raise typer.Exit(alert_owed.run(owed, stop_event(), SystemClock(), telling))
    if run_dir is not None:
        _dying.tell(run_dir, telling, SystemClock())
        raise typer.Exit(daemon.run(run_dir, stop_event(), SystemClock(), telling))


command = alert
