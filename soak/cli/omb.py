"""`soak omb`: files of the OpenMessaging Benchmark in, our runs as its results out."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

command = typer.Typer(
    help="Read and write files of the OpenMessaging Benchmark.", no_args_is_help=True
)


class Format(StrEnum):
    """A summary for people, or one row a sample."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"


@command.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Result files, also packed with gzip.")],
    output: Annotated[Format, typer.Option("--format", help="How to print results.")] = Format.text,
) -> None:
    """Read result files of any dialect.

    Exit: 0, or 2 when a file is not what it should be; nothing is printed then.
    """
    from soak.cli import _omb_text
    from soak.omb import packed_text, read_result

    found = [
        (
            path,
            read_result.parse(packed_text.parse_json(packed_text.read(path), str(path)), str(path)),
        )
        for path in files
    ]
    if output is Format.csv:
        sys.stdout.write(_omb_text.csv_text(found))
        return
    for path, result in found:
        rows = _omb_text.json_rows if output is Format.jsonl else _omb_text.summary
        for line in rows(path, result):
            print(line)


@command.command()
def export(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path | None, typer.Option(help="Result file to write, JSON.")] = None,
    dialect: Annotated[str, typer.Option(help="Whose fields to write.")] = "upstream",
    hdr_log: Annotated[
        Path | None, typer.Option(help="Write an interval log of HdrHistogram too.")
    ] = None,
) -> None:
    """Write the soak of a run as a result file, so that the benchmark's own tools read it.

    Exit: 0 written, 1 not a run or nothing measured yet, 2 unknown dialect or nowhere to write.
    """
    from soak.cli import _omb_run
    from soak.core.errors import PlanError
    from soak.omb import hdr_log as log
    from soak.omb import profile, run_result, write_result
    from soak.store.run_folder import RunFolder

    if out is None and hdr_log is None:
        raise PlanError("name --out FILE, --hdr-log FILE or both")
    profile.load(dialect)
    folder = RunFolder(run_dir.absolute())
    source = _omb_run.source(folder)
    if out is not None:
        result = run_result.collect(source, _omb_run.seconds(folder))
        _omb_run.write(out, [write_result.text(result, dialect)])
        print(out)
        for remark in result.remarks:
            print(f"note: {remark}", file=sys.stderr)
    if hdr_log is not None:
        _omb_run.write(hdr_log, log.lines(source.start_wall_ns, _omb_run.seconds(folder)))
        print(hdr_log)
