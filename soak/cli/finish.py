"""`soak finish`: the daemon that waits until a run is over and closes it, so that its report can be made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def finish(
    home: Annotated[Path, typer.Option(help="Folder for the runs of a plan, see `soak begin`.")],
) -> None:
    """Wait for the last record and the last word of the detector, then write down that the run is over."""
    from soak.cli._home import close_run
    from soak.core.clock import SystemClock
    from soak.daemons.finish import run
    from soak.service.notify import notifier
    from soak.service.signals import stop_event
    from soak.store.home import Home

    place = Home(home.absolute())
    folder = place.newest("running")
    if folder is None:  # it may have been killed when all but the last step was done
        notifier().ready()
        place.leave()
        print(f"no run goes on in {home}")
        return
    if run(folder, stop_event(), SystemClock()):
        close_run(place, folder)


command = finish
