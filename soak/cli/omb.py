"""`soak omb`: read and write files of the OpenMessaging Benchmark."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """A summary for people, or one row a sample."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"


class FindingsFormat(StrEnum):
    """Sentences for people, or one object a finding."""

    text = "text"
    jsonl = "jsonl"


omb_app = typer.Typer(
    help="Read and write files of the OpenMessaging Benchmark.", no_args_is_help=True
)


@omb_app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Result files, also packed; or a workload, a driver or both."),
    ],
    output: Annotated[Format, typer.Option("--format", help="How to print results.")] = Format.text,
    out: Annotated[Path | None, typer.Option(help="Where to write the plan.")] = None,
    dialect: Annotated[
        str | None, typer.Option(help="Dialect of the workload, if its keys do not show it.")
    ] = None,
) -> None:
    """Read result files of any dialect, or make a plan of a workload and a driver.

    Exit: 0, or 2 when a file is not what it should be; nothing is printed or written then.
    """
    from soak.app.analysis import omb
    from soak.core.errors import PlanError
    from soak.omb import plan_import
    from soak.omb import result as profile

    if dialect is not None:
        profile.load_profile(dialect)
    results, sources = omb.read_files(files)
    if results and sources:
        raise PlanError(
            f"{sources[0].document.name}: a result and a plan are not imported together"
        )
    if results and (out is not None or dialect is not None):
        raise PlanError("--out and --dialect are for workloads and drivers, and these are results")
    if results:
        omb.show_results(results, output)
        return
    plan = plan_import.import_plan(sources, dialect, str(out or "plan"))
    if out is None:
        sys.stdout.write(plan)
    else:
        omb.write_file(out, [plan])
        print(out)
        for note in (line for line in plan.splitlines() if line.startswith("# ")):
            print(f"note: {note[2:]}", file=sys.stderr)


@omb_app.command()
def export(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path | None, typer.Option(help="Result file to write, JSON.")] = None,
    dialect: Annotated[str, typer.Option(help="Dialect of the fields to write.")] = "upstream",
    hdr_log: Annotated[
        Path | None, typer.Option(help="Also write an interval log of HdrHistogram.")
    ] = None,
) -> None:
    """Write the soak of a run as a result file, so that the benchmark's own tools read it.

    Exit: 0 written, 1 not a run or nothing measured yet, 2 unknown dialect or nowhere to write.
    """
    from soak.app.analysis import omb
    from soak.core.errors import PlanError
    from soak.omb import result as profile
    from soak.omb import result_file, run_result
    from soak.omb import run_result as log
    from soak.store.run_folder import RunFolder

    if out is None and hdr_log is None:
        raise PlanError("name --out FILE, --hdr-log FILE or both")
    profile.load_profile(dialect)
    folder = RunFolder(run_dir.absolute())
    source = omb.run_source(folder)
    if out is not None:
        result = run_result.result_of_run(source, omb.run_seconds(folder))
        omb.write_file(out, [result_file.result_text(result, dialect)])
        print(out)
        for remark in result.remarks:
            print(f"note: {remark}", file=sys.stderr)
    if hdr_log is not None:
        omb.write_file(hdr_log, log.interval_log(source.start_wall_ns, omb.run_seconds(folder)))
        print(hdr_log)


@omb_app.command()
def analyse(
    files: Annotated[list[Path], typer.Argument(help="Result files, also packed.")],
    output: Annotated[
        FindingsFormat, typer.Option("--format", help="How to print.")
    ] = FindingsFormat.text,
) -> None:
    """Find where latency rose, the rate was not held or the backlog grew in result files of any dialect.

    Exit: 0, or 2 when a file is not a result or no latency was measured; nothing is printed then.
    """
    from soak.app.analysis import omb
    from soak.core import wording
    from soak.core.errors import PlanError

    results, sources = omb.read_files(files)
    if sources:
        raise PlanError(f"{sources[0].document.name}: not a benchmark result")
    for imported in results:
        omb.check_measured(*imported)
    is_text = output is FindingsFormat.text
    lines_of = omb.findings_text if is_text else omb.findings_json
    for path, result in results:
        for line in lines_of((path, result)):
            print(line)
        for remark in () if is_text else result.remarks:  # a file may have no finding to hold them
            print(wording.printable(f"note: {path}: {remark}"), file=sys.stderr)


COMMANDS = {"omb": omb_app}
