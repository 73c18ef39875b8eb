"""Commands that start one daemon of a run: produce, consume, conduct, receive, ship, probe, alert, detect-stream."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


def produce(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    index: Annotated[int, typer.Option(help="Number of this producer.")] = 0,
    all_: Annotated[
        bool, typer.Option("--all", help="All of them as one service, whatever their number.")
    ] = False,
) -> None:
    """Send on the schedule, whatever the broker does."""
    from soak.core.clock import SystemClock
    from soak.load.producer.loop import run
    from soak.service.signals import stop_event
    from soak.supervisor import pool

    stop, clock = stop_event(), SystemClock()
    if all_:
        raise typer.Exit(pool.run(run_dir, "produce", run, stop, clock))
    raise typer.Exit(run(run_dir, index, stop, clock))


produce_command = produce


# --- `soak consume`: the consumer daemon of a run.


def consume(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    index: Annotated[int, typer.Option(help="Number of this consumer.")] = 0,
    all_: Annotated[
        bool, typer.Option("--all", help="All of them as one service, whatever their number.")
    ] = False,
) -> None:
    """Receive, measure end to end, and audit."""
    from soak.core.clock import SystemClock
    from soak.load.consumer.loop import run
    from soak.service.signals import stop_event
    from soak.supervisor import pool

    stop, clock = stop_event(), SystemClock()
    if all_:
        raise typer.Exit(pool.run(run_dir, "consume", run, stop, clock))
    raise typer.Exit(run(run_dir, index, stop, clock))


consume_command = consume


# --- `soak conduct`: the conductor of a run.


def conduct(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    leave: Annotated[
        bool, typer.Option("--leave", help="On SIGTERM leave the run to the next conductor.")
    ] = False,
) -> None:
    """Decide the phases of a run, ahead of time."""
    from soak.conductor.loop import run
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), leaves_on_stop=leave))


conduct_command = conduct


# --- `soak receive`: the daemon that takes what other hosts sent of a run into its folder.


def receive(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    once: Annotated[
        bool, typer.Option("--once", help="Take what is there, and end: for a run that is over.")
    ] = False,
) -> None:
    """Write the other hosts' records into this run's journal, each once."""
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.shipping.receiver import run

    def tell(records: int) -> None:
        from soak.core.wording import counted

        print(f"{counted(records, 'record')} taken")

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), is_once=once, tell=tell))


receive_command = receive


# --- `soak ship`: the daemon that sends this host's records to the topic that the plan names.


def ship(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)],
    follow: Annotated[
        bool, typer.Option("--follow", help="End the run here when it is said to be over.")
    ] = False,
) -> None:
    """Send what this host's daemons recorded, and wait on disk while the cluster is away."""
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.shipping.sender import run

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), is_following=follow))


ship_command = ship


# --- `soak probe`: the probe daemon of a run or of a host alone, or a look at what this machine can give.


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
        from soak.app import host
        from soak.sampling.daemon import build

        clock = SystemClock()
        configs = (
            _configs(plan, run_dir) if plan or run_dir else _default_configs(directory or Path())
        )
        host.show_probes(host.read_probes(build(configs, clock), clock), host.plain_console())
        _exit_now(0)
    from soak.service.signals import stop_event

    if plan is not None:
        from soak.app.multi_host import run_probe_host

        _exit_now(run_probe_host(plan, run_dir, run_id, start, stop_event(), SystemClock()))
    if run_dir is None:
        raise PlanError("soak probe needs a PLAN, --run-dir DIR, or --once")
    from soak.sampling.daemon import run

    _exit_now(run(run_dir, stop_event(), SystemClock()))


def _exit_now(code: int) -> NoReturn:
    """End without waiting for a probe's thread that may hang in the kernel; the journal is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _configs(plan: Path | None, run_dir: Path | None) -> dict[str, Any]:
    from soak.app.multi_host import load_any_plan
    from soak.store.run_folder import RunFolder, read_any_plan

    found = load_any_plan(plan) if plan else read_any_plan(RunFolder(run_dir or Path()))
    return found.probes


def _default_configs(directory: Path) -> dict[str, Any]:
    """Return every probe there is with its defaults, and this directory where one is wanted."""
    from soak.core import plugins

    found = {}
    for name in plugins.names("probes"):
        kind = plugins.load("probes", name).Config
        wants = "directory" in kind.__dataclass_fields__
        found[name] = kind(directory=str(directory.absolute())) if wants else kind()
    return found


probe_command = probe


# --- `soak alert`: the daemon that tells people what was found, or a test whether it reaches them.


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
        from soak.app import direct_messages

        sinks = direct_messages.load_sinks(plan, run_dir)
        raise typer.Exit(0 if direct_messages.send_trial(*sinks, SystemClock()) else 1)
    if (run_dir is None) == (owed is None) or plan is not None:
        raise PlanError("soak alert needs --run-dir DIR, --owed RUNS, or a PLAN and --test")
    from soak.alerting import after_run, daemon
    from soak.app import direct_messages
    from soak.service.signals import stop_event

    if owed is not None:
        raise typer.Exit(after_run.run(owed, stop_event(), SystemClock(), telling))
    if run_dir is not None:
        direct_messages.notify_crashes(run_dir, telling, SystemClock())
        raise typer.Exit(daemon.run(run_dir, stop_event(), SystemClock(), telling))


alert_command = alert


# --- `soak detect-stream`: the streaming detector of a run.


def detect_stream(
    run_dir: Annotated[Path, typer.Option(help="Folder of the run.")],
) -> None:
    """Find steps and name their causes while the run goes on."""
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from spark.detect_stream import run

    raise typer.Exit(run(run_dir, stop_event(), SystemClock()))


detect_stream_command = detect_stream
