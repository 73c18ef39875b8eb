"""Commands that analyse what was recorded, or hand it on: detect, calibrate, export, fleet, compare, list."""

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
    ends in another unit, such as _ms or (us). A time may be an ISO date.

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


class Output(StrEnum):
    """A table for people, or one JSON object."""

    text = "text"
    json = "json"


class Align(StrEnum):
    """What the seconds of two runs are counted from."""

    soak = "soak"
    first_deletion = "first-deletion"
    bytes_written = "bytes-written"


_PERCENT = 100.0


def compare(  # noqa: PLR0913, PLR0917  # the options of a command
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Runs, results of the OpenMessaging Benchmark, or folders of equal runs; first the baseline."
        ),
    ] = None,
    trend: Annotated[
        Path | None, typer.Option(help="Compare all runs of this folder in order of time.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Percent that count as no difference.", min=0.1, max=100.0)
    ] = 10.0,
    run_noise: Annotated[
        float,
        typer.Option(
            help="Percent that equal runs differ by, where a side has one run.", min=0.0, max=100.0
        ),
    ] = 1.0,
    align: Annotated[
        Align,
        typer.Option(
            help="Compare runs from the start of their soaks, from their first deletion by retention, or "
            "between equal bytes written."
        ),
    ] = Align.soak,
    page: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="JSON file to write.")] = None,
    junit: Annotated[Path | None, typer.Option(help="JUnit file to write.")] = None,
    output: Annotated[Output, typer.Option("--format", help="How to print.")] = Output.text,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Keep nothing in the folders of the runs.")
    ] = False,
) -> None:
    """Compare runs: better, same, worse or cannot tell, for each latency quantile and service objective.

    Each further run is compared with the first. A folder of runs is one side of several equal runs, from
    which the noise between runs is measured. Differences in durability, cluster and load are warned of first.

    Exit: 0 same or better, 3 worse, 4 cannot tell, 1 when a run cannot be read, 2 when the call is wrong.
    """
    import json

    from soak.app import comparison as app
    from soak.core.errors import PlanError
    from spark.batch.comparison.alignment import ALIGNMENTS
    from spark.batch.comparison.comparison import Settings

    settings = Settings(margin / _PERCENT, run_noise / _PERCENT, align=ALIGNMENTS[align])
    if trend is not None:
        if runs:
            raise PlanError("--trend takes a folder, and no further runs")
        if align is not Align.soak:
            raise PlanError("--align is for runs that are compared; a trend is over whole soaks")
        over_runs, skipped = app.compare_trend(trend, settings, is_cached=not no_cache)
        body: object = over_runs.to_json() | {"left_out": skipped}
        lines = list(app.trend_lines(over_runs, skipped))
        code = app.EXIT_CODE[over_runs.verdict]
        if page is not None:
            app.write_page(page, over_runs)
        if junit is not None:
            app.write_trend_junit(junit, over_runs)
    else:
        found = app.compare_runs(runs or [], settings, is_cached=not no_cache)
        body = {"verdict": app.worst(found), "comparisons": [one.to_json() for one in found]}
        lines = [line for one in found for line in app.comparison_lines(one)]
        code = app.EXIT_CODE[app.worst(found)]
        if page is not None:
            app.write_page(page, found)
        if junit is not None:
            app.write_junit(junit, found)
    if json_file is not None:
        app.write_json(json_file, body)
    print(json.dumps(body, indent=2) if output is Output.json else "\n".join(lines))
    raise typer.Exit(code)


def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder with run folders.")] = Path("runs"),
) -> None:
    """List the runs of a folder, oldest first, with verdict, p99 of publishing and incidents that count."""
    from soak.app.comparison import list_lines

    for line in list_lines(folder):
        print(line)


def acknowledge(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    incident: Annotated[str, typer.Argument(help="Key of the incident, or the number at its end.")],
    note: Annotated[str, typer.Option(help="Why it is known.")],
) -> None:
    """Mark an incident as a known change: it counts no more, in verdicts, comparisons and trends.

    Exit: 0, 1 when the run has no such incident or cannot be written.
    """
    from soak.app.comparison import acknowledge_line

    print(acknowledge_line(run, incident, note))


COMMANDS = {
    "detect": detect,
    "calibrate": calibrate,
    "export": export,
    "fleet": fleet,
    "compare": compare,
    "list": list_runs,
    "acknowledge": acknowledge,
}
