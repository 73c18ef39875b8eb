"""Commands that analyse what was recorded, or hand it on: detect, calibrate, export and fleet."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Mode(StrEnum):
    """Whether the search may look ahead."""

    offline = "offline"
    online = "online"


class Format(StrEnum):
    """One object a line, or one sentence a line."""

    jsonl = "jsonl"
    text = "text"


VALUES = 4_000_000
"""Half a minute of work; more values narrow the intervals."""
MAX_VALUES = 100_000_000
"""Half of them are in memory at once, at up to 54 bytes each where the shortest time is a minute: 2.7 GB."""


def detect(
    target: Annotated[
        Path, typer.Argument(help="CSV with a header, time first; or the folder of a run.")
    ],
    value: Annotated[
        list[str] | None,
        typer.Option(
            help="Value column, repeatable; default: the second, and if that is a latency every latency."
        ),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="Online never looks ahead.")] = Mode.offline,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
) -> None:
    """Print the steps, drifts, spikes and tails of series, one a line.

    Several columns are analysed together: what several did at one time is one step. Online each is
    analysed by itself. An empty value is a missing one; its row counts. Columns named as latencies are judged
    on log10, no lower than a microsecond. They and the time are in seconds, unless the name of the column
    ends in _ms, _us or _ns.

    For a run the latencies of its soak are analysed offline, as in its report: beyond two hours in rows of
    ten seconds. The printed row is a second of the run.
    """
    from soak.app.analysis.detect import detect_lines

    is_online, is_json = mode is Mode.online, output is Format.jsonl
    for line in detect_lines(target, value, is_online=is_online, is_json=is_json):
        print(line)


def calibrate(
    target: Annotated[
        Path, typer.Argument(help="Folder of a run, or a CSV as `soak detect` reads.")
    ],
    false_alarms: Annotated[
        str | None,
        typer.Option(help="Target rate, such as '1 per 30d'; default: the rate of the run."),
    ] = None,
    value: Annotated[str | None, typer.Option(help="Value column of a CSV.")] = None,
    values: Annotated[
        int, typer.Option(help="Values to simulate.", min=100_000, max=MAX_VALUES)
    ] = VALUES,
    seed: Annotated[int, typer.Option(help="Seed of the random blocks.", min=0)] = 0,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
) -> None:
    """Print how many false alarms to expect on noise like this, and the smallest step that is detected.

    The quiet seconds, without steps and invalid ones, are shuffled in blocks of two minutes and more and
    put through the online detector of steps. Drift, spikes and shares of slow messages are not simulated.
    A latency of a CSV is in seconds, as is its time, unless the name of the column ends in _ms, _us or _ns.

    Exit: 0, 1 when there is too little quiet data, 2 when the rate or the file is wrong.
    """
    from soak.app.analysis.calibrate import Simulation, calibrate_lines

    simulation = Simulation(values=values, max_values=MAX_VALUES, seed=seed)
    lines = calibrate_lines(target, value, false_alarms, simulation, is_json=output is Format.jsonl)
    for line in lines:
        print(line)


def export(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    to: Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.")],
) -> None:
    """Write a run as parquet for notebooks: samples, events, findings and changes.

    A run that was interrupted or is still running is exported as far as it is written. The columns, and how
    pandas and Spark read them, are in docs/how-to/export.md.

    Exit: 0, 1 when this is no run or the folder cannot be written.
    """
    from spark.batch.export import run as export_run

    found = export_run(run_dir, to)
    counts = f"{found.samples:,} samples, {found.events:,} events"
    print(f"{found.folder}: {counts}, {found.findings:,} findings, {found.changes:,} changes")


fleet = typer.Typer(help="Many runs side by side.", no_args_is_help=True)


@fleet.callback()
def _fleet() -> None:
    """Keep `report` a command of its own: typer would merge the only one into its group."""


@fleet.command()
def report(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of runs, or folders with runs in them.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Plan of a fleet, whose findings topic is read as well.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Page to write.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.text,
) -> None:
    """Print how many runs ended, what caused their incidents, and how their latencies went from run to run.

    Runs are read from their reports (`soak report`), and with --plan from the findings topic. A trend needs
    five runs of one plan; see docs/how-to/fleet-report.md.

    Exit: 0, 1 when a folder or the topic cannot be read, 2 when the plan has a fault.
    """
    from soak.app.analysis.fleet import lines, overview, page
    from soak.core.clock import SystemClock
    from soak.core.errors import PlanError
    from soak.service.files import write_atomically

    if not folders and plan is None:
        raise PlanError("name a folder with runs, or a plan with --plan")
    found = overview(folders or [], plan, SystemClock())
    if html is not None:
        write_atomically(html, page(found))
    for line in [found.to_json()] if output is Format.jsonl else lines(found):
        print(line)


COMMANDS = {"detect": detect, "calibrate": calibrate, "export": export, "fleet": fleet}
