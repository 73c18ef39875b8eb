"""A tool of a broker's, run to its end: such as one that formats a data folder."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from soak.core.errors import LabError
from soak.service import children


def run_tool(
    name: str, command: Sequence[str], folder: Path, limit_seconds: float, *logs: Path
) -> None:
    """Run it in `folder`; what it prints goes into the first of the logs, and an error shows their ends.

    Raises:
        LabError: it failed, or did not end.
    """
    process = children.spawn(command, log_path=logs[0], cwd=folder)
    try:
        status = process.wait(limit_seconds)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{name} did not end in {limit_seconds:g} s") from error
    finally:
        children.kill(process)
    if status != 0:
        said = "".join(children.log_tail(path) for path in logs)
        raise LabError(f"{name} failed:\n{said}")
