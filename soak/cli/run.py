"""Commands about a whole run: init, check, run, watch, serve, stop, report, audit, merge, clean, support."""

from __future__ import annotations

import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from soak.cli.cluster import Conf, Master, Secret, run_folder

if TYPE_CHECKING:  # a command imports what it needs when it is called
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from soak.app.foreground import FinishedRun

Plan = Annotated[Path, typer.Argument(help="The plan, a YAML file.")]


class Format(StrEnum):
    text = "text"
    json = "json"


def check(
    plan: Plan,
    show: Annotated[
        bool,
        typer.Option("--show", help="Print the plan with every default; all else goes to stderr."),
    ] = False,
    scale: Annotated[str, typer.Option(help="Check a run at this fraction of the rate.")] = "",
    duration: Annotated[str, typer.Option(help="Check a run of this length, such as 2min.")] = "",
    drives: Annotated[
        bool, typer.Option("--drives", help="Measure the brokers' drives that this host has.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="With --drives: store the result in the folder of this run.")
    ] = None,
) -> None:
    """Check a plan, this machine and the cluster; print every fault with file, line and key.

    What depends on a wrong key is not checked: with a wrong address or login the cluster is not asked.
    Warnings refuse no plan.

    Exit: 0, 2 with a fault.
    """
    from soak.app.check import run_check

    run_check(plan, show, scale, duration, drives, run_dir)


def init(
    plan: Annotated[Path, typer.Argument(help="The file to write.")] = Path("my-soak.yaml"),
    servers: Annotated[
        str, typer.Option(help="host:port,host:port, or the service URL of a Pulsar.")
    ] = "",
    kind: Annotated[str, typer.Option(help="kafka, redpanda or pulsar.")] = "kafka",
    security: Annotated[
        str, typer.Option(help="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.")
    ] = "PLAINTEXT",
    mechanism: Annotated[
        str, typer.Option(help="With SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = "SCRAM-SHA-512",
    user: Annotated[str, typer.Option(help="With SASL.")] = "",
    ca_file: Annotated[
        str, typer.Option(help="A certificate that this machine does not trust by default.")
    ] = "",
    admin_url: Annotated[str, typer.Option(help="Of a Pulsar: http://host:8080.")] = "",
    mail: Annotated[str, typer.Option(help="Address for findings.")] = "",
) -> None:
    """Write a first plan for a cluster, with comments, and check it; what no option says is asked for.

    Exit as `soak check`. Nothing is written where no broker answers, or one refuses a login that these
    options give; after another fault the plan stays.
    """
    from soak.app import first_plan

    given = first_plan.Answers(
        kind, servers, security.upper(), mechanism.upper(), user, ca_file, admin_url, mail
    )
    first_plan.init(plan, first_plan.ask(given))


def run(
    plan: Plan,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for this run; new or empty. Default: below the plan's runs."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Run at this fraction of the plan's rate, such as 0.01.")
    ] = "",
    duration: Annotated[
        str, typer.Option(help="Shorten the plan's load to this time, such as 2min, in proportion.")
    ] = "",
    run_id: Annotated[str, typer.Option(help="Id of a run over several hosts.")] = "",
    start: Annotated[str, typer.Option(help="When its load begins: 2026-01-31T12:00:00Z.")] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume the plan's interrupted run, or the one of --run-dir."
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Start although the plan exceeds its `limits`.")
    ] = False,
    only: Annotated[
        str, typer.Option(help="Daemons of this host, such as produce.1,consume.0,probe.")
    ] = "",
) -> None:
    """Run a plan to its end and report.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed, 2 bad plan, 130 interrupted (data kept).
    """
    from rich.console import Console

    from soak.app import foreground, plan_files
    from soak.app.multi_host import part_of
    from soak.app.outcome import show_outcome
    from soak.app.preflight.host import YES_HINT, check_limits

    console = Console()
    if resume:
        fixed = {"--scale": scale, "--duration": duration, "--start": start, "--yes": yes}
        finished = _resume(plan, run_dir, run_id, only, fixed, console)
    else:
        part = part_of(run_id, start, only)
        plan_file = plan_files.scaled_plan(plan_files.load_plan(plan), scale, duration)
        if not yes:
            check_limits(plan_file, hint=YES_HINT)
        finished = foreground.run_plan(plan_file, run_dir, console, part=part)
    if not finished.is_part:
        show_outcome(console, finished.folder)
    raise typer.Exit(finished.code)


def _resume(
    plan: Path,
    run_dir: Path | None,
    run_id: str,
    only: str,
    fixed: Mapping[str, object],
    console: Console,
) -> FinishedRun:
    """Resume the interrupted run of a plan; `fixed` are options that cannot change any more."""
    from soak.app import foreground, plan_files
    from soak.app.lifecycle import find_interrupted_run
    from soak.app.multi_host import daemon_names
    from soak.core.errors import PlanError

    for option, value in fixed.items():
        if value:
            raise PlanError(f"{option}: a resumed run follows its own plan.yaml")
    folder = find_interrupted_run(plan_files.load_plan(plan).plan, run_dir, run_id)
    return foreground.resume_run(folder, console, daemon_names(only))


def watch(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.", resolve_path=True)],
    once: Annotated[bool, typer.Option("--once", help="Show it a single time.")] = False,
) -> None:
    """Show a run as `soak run` does, from another terminal, until it ends; one that is over a single time.

    It only reads the folder of the run, and may be started and ended at any time. Where there is no terminal
    it prints lines.
    """
    from rich.console import Console

    from soak.app.live import terminal
    from soak.core.clock import SystemClock
    from soak.service.signals import stop_event
    from soak.store.run_folder import RunFolder

    terminal.watch(RunFolder(run_dir), Console(), SystemClock(), stop_event(), is_once=once)


def serve(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run, or a folder with runs in it.")
    ] = Path("runs"),
    listen: Annotated[
        str,
        typer.Option(metavar="ADDRESS:PORT", help="Other addresses than loopback need a token."),
    ] = "127.0.0.1:8042",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token. Default: a new one, which is printed.")
    ] = None,
    renew: Annotated[
        str,
        typer.Option(
            help="Renew the report of a run that goes on this often, while its page is open; 0s: never."
        ),
    ] = "10min",
) -> None:
    """Show runs in a browser: a list, each run as it is now, its report, and comparisons.

    It is read-only but for reports, which it renews at the lowest priority. What it shows beyond loopback is
    not encrypted: put a proxy with TLS before it.
    """
    from functools import partial

    from soak.app.live import server
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError
    from soak.core.units import duration_ns
    from soak.service.signals import stop_event

    try:
        renew_ns = duration_ns(renew)
    except ValueError as error:
        raise PlanError(f"--renew: {error}") from error
    token = "" if token_file is None else server.read_token(token_file)
    tell = partial(print, flush=True)
    server.run(
        folder, SystemClock(), stop_event(), tell, listen=listen, token=token, renew_ns=renew_ns
    )


def stop(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.", resolve_path=True)],
) -> None:
    """End the load of a run early; messages that were sent are still received."""
    from soak.app.lifecycle import request_stop
    from soak.store.run_folder import RunFolder

    print(request_stop(RunFolder(run_dir)))


def report(
    run_dir: Annotated[
        Path, typer.Argument(parser=run_folder, metavar="RUN_DIR", help="Folder of the run.")
    ],
    open_: Annotated[bool, typer.Option("--open", help="Show it in a browser.")] = False,
    master: Master = "",
    conf: Conf = None,
    secret: Secret = "",
) -> None:
    """Create the report of a run, also of one that was interrupted or is still running.

    Each phase of the work is a line on stderr.

    Exit: 0 clean, 3 regressed, 4 inconclusive, 1 failed.
    """
    from functools import partial

    from soak.app.outcome import REPORT_PROGRESS, make_report
    from spark.cluster.master import parse_cluster
    from spark.report.job import run as render

    def note(doing: str) -> None:
        print(f"{REPORT_PROGRESS}{doing}", file=sys.stderr, flush=True)

    cluster = parse_cluster(master, conf or (), secret)
    code, folder = make_report(run_dir, partial(render, cluster=cluster, note=note))
    print(folder.report)
    if open_:
        webbrowser.open(folder.report.as_uri())
    raise typer.Exit(code)


def audit(
    plan: Plan,
    other: Annotated[
        Path | None, typer.Argument(help="A second plan: are the two comparable?")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
    scale: Annotated[str, typer.Option(help="Audit a run at this fraction of the rate.")] = "",
) -> None:
    """Print the durability level (1 to 4) of a plan's topics, from the live cluster and the plan.

    A lab broker is started for the duration of the check. With two plans: exit 1 when their levels differ
    or are unknown; 2 for a bad plan or a cluster that does not answer.
    """
    from soak.app.guarantees import audit_plans

    lines, may_compare = audit_plans(plan, other, scale, is_json=output is Format.json)
    print("\n".join(lines))
    raise typer.Exit(0 if may_compare else 1)


def clean(
    run_dirs: Annotated[
        list[Path], typer.Argument(help="Folders of runs that have ended.", resolve_path=True)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """List the topics that runs created and that still exist, and delete them after confirmation.

    What fails for one run is reported, and the others are cleaned. Without a terminal `--yes` is needed.

    Exit: 0 none of the topics is left, 1 some are, 2 the plan of a run cannot be read.
    """
    from soak.app.topics import clean_run
    from soak.core.errors import PlanError, SoakError
    from soak.service.systemd import print_error
    from soak.store.run_folder import RunFolder

    codes = []
    for path in run_dirs:
        if len(run_dirs) > 1:
            print(f"{path}:", flush=True)
        try:
            codes.append(0 if clean_run(RunFolder(path), _may_delete(yes)) else 1)
        except SoakError as error:
            print_error(f"soak: {error}")
            codes.append(2 if isinstance(error, PlanError) else 1)
    raise typer.Exit(max(codes))


def _may_delete(yes: bool) -> Callable[[], bool]:
    """Return the question whether topics are deleted, asked at a terminal if --yes is not given."""
    return lambda: yes or (sys.stdin.isatty() and typer.confirm("Delete them with all in them?"))


def merge(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the host that has conduct.")],
    parts: Annotated[list[Path], typer.Argument(help="Folders of the other hosts, copied here.")],
) -> None:
    """Merge the journals of other hosts into the folder of a run, so that `soak report` covers all of it."""
    from soak.store.merge import merge_run_folder
    from soak.store.run_folder import RunFolder

    for part in parts:
        merged = merge_run_folder(RunFolder(run_dir), RunFolder(part))
        print(f"{part}: {', '.join(merged) or 'already merged'}")
    print(f"now `soak report {run_dir}`")


def support_bundle(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.", resolve_path=True)],
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: support-RUN.tar.gz, here.")
    ] = None,
    incident: Annotated[
        str, typer.Option(help="Key of the incident, or the number at its end; default: the worst.")
    ] = "",
    at: Annotated[
        str, typer.Option(help="A time instead of an incident: 2026-01-31T12:00:00Z.")
    ] = "",
) -> None:
    """Pack what a report of a fault needs: versions, plan, ten minutes of journals, logs; no secret gets in.

    The values of all secrets that the plan names are replaced in every file, as is what stands where
    passwords stand. Run it as a user who may read these secrets, and look into the bundle before you send it.

    Exit: 0, 1 when this is no run, it has no such incident, or the file cannot be written; 2 for a bad time.
    """
    from soak.app.support import write_bundle
    from soak.store.run_folder import RunFolder

    bundle = write_bundle(RunFolder(run_dir), output, incident, at)
    print(f"{bundle.path}: {bundle.files} files; journals of ten minutes, {bundle.window}")


COMMANDS = {
    "init": init,
    "check": check,
    "run": run,
    "watch": watch,
    "serve": serve,
    "stop": stop,
    "report": report,
    "audit": audit,
    "clean": clean,
    "merge": merge,
    "support-bundle": support_bundle,
}
RENAMED = {"collect": "merge"}
