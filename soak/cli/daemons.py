"""Commands that start one daemon of a run, such as `soak produce`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from soak.cli.cluster import Conf, Master, Secret, run_folder

RunDir = Annotated[Path, typer.Option(help="Folder of the run.", resolve_path=True)]
All = Annotated[bool, typer.Option("--all", help="Run all of them in one service.")]


def produce(
    run_dir: RunDir,
    index: Annotated[int, typer.Option(help="Number of this producer.")] = 0,
    all_: All = False,
) -> None:
    """Send messages on the plan's schedule, independent of how fast the broker answers."""
    from soak.core.clock import SystemClock
    from soak.load.producer.loop import run
    from soak.service.signals import stop_event
    from soak.supervisor import pool

    stop, clock = stop_event(), SystemClock()
    if all_:
        raise typer.Exit(pool.run(run_dir, "produce", run, stop, clock))
    raise typer.Exit(run(run_dir, index, stop, clock))


def consume(
    run_dir: RunDir,
    index: Annotated[int, typer.Option(help="Number of this consumer.")] = 0,
    all_: All = False,
) -> None:
    """Receive messages, measure end-to-end latency, and look for lost and duplicate messages."""
    from soak.core.clock import SystemClock
    from soak.load.consumer.loop import run
    from soak.service.signals import stop_event
    from soak.supervisor import pool

    stop, clock = stop_event(), SystemClock()
    if all_:
        raise typer.Exit(pool.run(run_dir, "consume", run, stop, clock))
    raise typer.Exit(run(run_dir, index, stop, clock))


def conduct(
    run_dir: RunDir,
    leave: Annotated[
        bool, typer.Option("--leave", help="On SIGTERM leave the run to the next conductor.")
    ] = False,
) -> None:
    """Decide when each phase of a run begins, some seconds ahead."""
    from soak.conductor.loop import run
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), leaves_on_stop=leave))


def receive(
    run_dir: RunDir,
    once: Annotated[
        bool, typer.Option("--once", help="Receive what is there, then end: for a finished run.")
    ] = False,
) -> None:
    """Receive the records of other hosts and write each once into the journal of this run."""
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.shipping.receiver import run

    def report(records: int) -> None:
        from soak.core.wording import counted

        print(f"{counted(records, 'record')} received")

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), is_once=once, report=report))


def ship(
    run_dir: RunDir,
    follow: Annotated[
        bool, typer.Option("--follow", help="End the run here when its end is announced.")
    ] = False,
) -> None:
    """Send what the daemons of this host record to the topic that the plan names.

    Records wait on disk while the cluster is unavailable.
    """
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.shipping.sender import run

    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), is_following=follow))


def detect_stream(
    run_dir: Annotated[
        Path, typer.Option(parser=run_folder, metavar="PATH", help="Folder of the run.")
    ],
    master: Master = "",
    conf: Conf = None,
    secret: Secret = "",
) -> None:
    """Find changes of latency while the run goes on, and name their causes."""
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from spark.cluster.master import parse_cluster
    from spark.streaming.job import run

    cluster = parse_cluster(master, conf or (), secret)
    raise typer.Exit(run(run_dir, stop_event(), SystemClock(), cluster))


def detect_fleet(
    plan: Annotated[Path, typer.Argument(help="Plan of the fleet: ship, store, detection, sinks.")],
    state: Annotated[
        Path,
        typer.Option(
            parser=run_folder,
            metavar="PATH",
            help="Folder for the state, kept from one start to the next.",
        ),
    ] = Path("fleet"),
    since: Annotated[
        str,
        typer.Option(help="At the first start, how far back to begin: 1h, 0s, or all."),
    ] = "1h",
    partitions: Annotated[int, typer.Option(help="Parts of the state, worked on in parallel.")] = 1,
    cores: Annotated[
        int, typer.Option(help="Processor cores to use, here or of a standalone cluster.")
    ] = 2,
    master: Master = "",
    conf: Conf = None,
    secret: Secret = "",
) -> None:
    """Find changes of latency in all runs that ship their records to one topic."""
    from soak.app.preflight.probes import check_fleet_plan
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError
    from soak.core.units import SECOND_NS, duration_ns
    from soak.service.signals import stop_event
    from spark.cluster.master import parse_cluster
    from spark.streaming.fleet import FleetOptions, run

    try:
        seconds = None if since == "all" else duration_ns(since) // SECOND_NS
    except ValueError as error:
        raise PlanError(f"--since: {error}") from error
    if partitions < 1 or cores < 1:
        raise PlanError("--partitions and --cores must be at least 1")
    check_fleet_plan(plan)
    options = FleetOptions(state=state, since_seconds=seconds, partitions=partitions, cores=cores)
    cluster = parse_cluster(master, conf or (), secret)
    raise typer.Exit(run(plan, options, stop_event(), SystemClock(), cluster))


def alert(
    plan: Annotated[Path | None, typer.Argument(help="With --test: a plan.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run.", resolve_path=True)
    ] = None,
    pending: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNS",
            help="Send the notifications that are still pending for ended runs below a folder, then end.",
        ),
    ] = None,
    sinks_from: Annotated[
        Path | None,
        typer.Option(
            metavar="PLAN", help="Use the `sinks` and `alerts` of this plan, not those of the run."
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option("--test", help="Send one test message to each sink, print the result, end."),
    ] = False,
) -> None:
    """Notify of the findings of a run, once each.

    With --pending it retries for one day at most.

    Exit with --test: 0 every sink accepted the message, 1 one did not, 2 bad plan.
    """
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError

    if test:
        from soak.app import direct_messages

        sinks = direct_messages.load_sinks(plan, run_dir)
        raise typer.Exit(0 if direct_messages.send_test_message(*sinks, SystemClock()) else 1)
    if (run_dir is None) == (pending is None) or plan is not None:
        raise PlanError("soak alert needs --run-dir DIR, --pending RUNS, or a PLAN and --test")
    from soak.alerting import after_run, daemon
    from soak.app import direct_messages
    from soak.service.signals import stop_event

    if pending is not None:
        raise typer.Exit(after_run.run(pending, stop_event(), SystemClock(), sinks_from))
    if run_dir is not None:
        direct_messages.notify_crashes(run_dir, sinks_from, SystemClock())
        raise typer.Exit(daemon.run(run_dir, stop_event(), SystemClock(), sinks_from))


def probe(
    plan: Annotated[Path | None, typer.Argument(help="Plan of a probe host, or of a run.")] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; with a plan: where to create it.", resolve_path=True),
    ] = None,
    run_id: Annotated[
        str, typer.Option(help="With a plan: the run to join; default: one that is announced.")
    ] = "",
    start: Annotated[str, typer.Option(help="With --run-id: when that run starts.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Read every probe, print, end.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="With --once alone: a folder on the drive to measure; default: this one."
        ),
    ] = None,
) -> None:
    """Read every probe of a plan once a second."""
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError
    from soak.service.signals import stop_event

    if directory is not None and not (once and plan is None and run_dir is None):
        raise PlanError(
            "--directory needs --once alone; the probes of a plan name their own folder"
        )
    if once:
        from soak.app.multi_host import print_readings

        print_readings(plan, run_dir, directory or Path(), SystemClock())
        _exit_now(0)
    if plan is not None:
        from soak.app.multi_host import run_probe_host

        _exit_now(run_probe_host(plan, run_dir, run_id, start, stop_event(), SystemClock()))
    if run_dir is None:
        raise PlanError("soak probe needs a PLAN, --run-dir DIR, or --once")
    from soak.sampling.daemon import run

    _exit_now(run(run_dir, stop_event(), SystemClock()))


def _exit_now(code: int) -> NoReturn:
    """Exit without waiting for a probe thread that may hang in the kernel; the journal is closed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


COMMANDS = {
    "produce": produce,
    "consume": consume,
    "conduct": conduct,
    "receive": receive,
    "ship": ship,
    "probe": probe,
    "alert": alert,
    "detect-stream": detect_stream,
    "detect-fleet": detect_fleet,
}
RENAMED = {"alert --owed": "alert --pending", "alert --telling": "alert --sinks-from"}
