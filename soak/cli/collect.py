"""`soak collect`: the journals of a run over several hosts, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def collect(
    run_dir: Annotated[Path, typer.Argument(help="Folder of the host that has conduct.")],
    parts: Annotated[list[Path], typer.Argument(help="Folders of the other hosts, copied here.")],
) -> None:
    """Bring the other hosts' journals into a run's folder, so that `soak report` judges all of it."""
    from soak.store.collected import collect as bring
    from soak.store.run_folder import RunFolder

    for part in parts:
        brought = bring(RunFolder(run_dir), RunFolder(part))
        print(f"{part}: {', '.join(brought) or 'all of it is there already'}")
    print(f"now `soak report {run_dir}`")


command = collect
