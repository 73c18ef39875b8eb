"""`soak install-units`: has systemd run plans on this machine, or takes that back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def install_units(
    prefix: Annotated[
        Path, typer.Option(help="Root of the file system to install into; / is this machine's.")
    ] = Path("/"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell, and do nothing.")] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove what was installed; runs and plans stay.")
    ] = False,
) -> None:
    """Install systemd's units for the `soak` that is called, and check what was done.

    Exit: 0 done, 1 a file could not be written, or the check found something wrong.
    """
    from soak.cli import _units, _units_check

    os.umask(0o022)  # what is installed is for everybody to read
    if uninstall:
        steps = _units.removed(prefix, is_dry=dry_run)
        print("\n".join(steps) or f"nothing of ours below {prefix}")
        return
    for line in _units.installed(prefix, is_dry=dry_run):
        print(line)
    if dry_run:
        return
    wrong = _units_check.check(prefix)
    for line in wrong:
        print(f"wrong: {line}")
    if wrong:
        raise typer.Exit(1)
    print("checked; a run of /etc/soak/NAME.yaml: systemctl start soak@NAME.target")


command = install_units
