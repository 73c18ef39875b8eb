"""`soak stop`: asks a run to end before its time, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def stop(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the run.", resolve_path=True)],
) -> None:
    """Have a run's conductor end the load, let what was sent be received, and end the run."""
    from soak.core.errors import RunFolderError
    from soak.store.run_folder import RunFolder, read_run

    folder = RunFolder(run_dir)
    run = read_run(folder)
    if run.state != "running":
        print(f"run {run.id} does not go on: its state is {run.state}")
        return
    try:
        folder.stop_request.touch()
    except OSError as error:
        raise RunFolderError(f"cannot write {folder.stop_request}: {error.strerror}") from error
    print(f"run {run.id} ends; its conductor, once it runs, lets what was sent be received first")
    if run.only:
        print(f"here that is {', '.join(run.only)} alone: stop the run on its other hosts, too")


command = stop
