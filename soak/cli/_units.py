"""systemd's units as files: shipped as templates, installed for the program that is called."""

from __future__ import annotations

import grp
import os
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import soak
from soak.cli._man import bash_completion, page
from soak.core.errors import NotAvailableError, SoakError
from soak.store.run_folder import write_atomically

UNITS = Path("etc/systemd/system")
USER = Path("etc/sysusers.d/soak.conf")
MAN = Path("usr/local/share/man/man1/soak.1")
COMPLETION = Path("usr/local/share/bash-completion/completions/soak")
PLANS = Path("etc/soak")
CREDENTIALS = PLANS / "credentials"
_COMMON, _PROGRAM = "# common.conf\n", "/usr/bin/soak"
HIDDEN = ("/home", "/root", "/run/user")  # what ProtectHome= takes away
_PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")
_TOOL_SECONDS = 60


def rendered() -> dict[Path, str]:
    """Return the files, by their place below the root.

    Raises:
        NotAvailableError: this installation ships no units, or lies where a unit cannot name it.
    """
    folder = _shipped()
    common = (folder / "common.conf").read_text()
    program = Path(sys.prefix) / "bin" / "soak"
    for part in needed():
        if not _PLAIN.fullmatch(part):
            raise NotAvailableError(f"{part}: a unit cannot name such a path")
    hidden = sorted(part for part in needed() if is_hidden(part))
    if hidden:  # a unit sees nothing of home folders but what it needs
        shown = f"ProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(hidden)}\n"
        common = common.replace("ProtectHome=yes\n", shown)
    files = {USER: (folder / "soak.sysusers").read_text()}
    for path in sorted(folder.iterdir()):
        if path.suffix in {".service", ".target", ".timer"}:
            text = path.read_text().replace(_COMMON, common)
            files[UNITS / path.name] = text.replace(f"={_PROGRAM} ", f"={program} ")
    return files


def for_people(root: Path) -> dict[Path, str]:
    """Return the man page and the shell's completion, where the root has a folder for the former."""
    folder = root / MAN.parents[1]
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return {}
    return {MAN: page(), COMPLETION: bash_completion()}


def installed(root: Path, *, is_dry: bool) -> list[str]:
    """Write the files below `root` and tell what was done; on this machine the manager is told too.

    Raises:
        SoakError: a file cannot be written.
    """
    steps = []
    for place, text in {**rendered(), **for_people(root)}.items():
        path = root / place
        is_there = path.is_file() and path.read_text() == text
        steps.append(f"{'same' if is_there else 'write'} {path}")
        if not is_there and not is_dry:
            _write(path, text)
    commands = [["systemd-sysusers", str(root / USER)], ["systemctl", "daemon-reload"]]
    if is_managed(root):
        steps += [f"run {' '.join(command)}" for command in commands]
    if not is_dry:
        for command in commands if is_managed(root) else []:
            tool(command)
        for folder in (root / PLANS, root / CREDENTIALS):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        _give_to_group(root / PLANS)
        (root / CREDENTIALS).chmod(0o700)  # systemd reads them as root
    steps += [f"folder {root / PLANS} for plans", f"folder {root / CREDENTIALS} for secrets"]
    return [*steps, *about_checkout(_shipped())]


def about_checkout(units: Path) -> list[str]:
    """Return a warning where the units that are installed, and so the code, are those of a checkout."""
    checkout = units.parent
    if not (checkout / "pyproject.toml").is_file():
        return []
    return [f"note: the units run the code in {checkout}: what changes there changes under a run"]


def removed(root: Path, *, is_dry: bool) -> list[str]:
    """Remove what `installed` wrote, and the links of what was enabled; return what was done.

    A unit that has failed is forgotten with it.

    Raises:
        SoakError: a unit of ours is running, or a file cannot be removed.
    """
    if is_managed(root):
        listed = tool(["systemctl", "list-units", "--plain", "--no-legend", "soak*@*"])
        running, failed = there(listed, own_units())
        if running:
            raise SoakError(
                f"{running[0]} is loaded: stop it first, as by systemctl stop 'soak*@*'"
            )
        if failed and not is_dry:
            tool(["systemctl", "reset-failed", *failed])
    files = rendered()
    places = [place for place in (*files, MAN, COMPLETION) if (root / place).is_file()]
    places += _enabled(root, {place.name for place in files})
    if not is_dry:
        for place in places:
            try:
                (root / place).unlink()
            except OSError as error:
                raise SoakError(f"cannot remove {root / place}: {error.strerror}") from error
        if is_managed(root):
            tool(["systemctl", "daemon-reload"])
    return [f"remove {root / place}" for place in places]


def needed() -> set[str]:
    """Return the folders without which the program does not run."""
    return {sys.prefix, sys.base_prefix, str(Path(soak.__file__).parents[1])}


def own_units() -> set[str]:
    """Return how the names of our units begin, up to the instance: `soak-begin@`."""
    return {place.stem for place in rendered() if place.stem.endswith("@")}


def there(listed: str, units: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which of these units run, and which have failed, by a list of systemctl's.

    One that failed runs no more, yet it is listed until somebody has seen it.
    """
    rows = [line.split() for line in listed.splitlines() if line.strip()]
    states = {unit: state for unit, _, state, *_ in rows if f"{unit.partition('@')[0]}@" in units}
    failed = [unit for unit, state in states.items() if state == "failed"]
    return [unit for unit in states if unit not in failed], failed


def _shipped() -> Path:
    beside = Path(soak.__file__).parents[1] / "systemd"
    for folder in (beside, Path(sys.prefix) / "share" / "soakd" / "systemd"):
        if (folder / "common.conf").is_file():
            return folder
    raise NotAvailableError("this installation of soakd ships no units")


def is_hidden(path: str, hidden: Collection[str] = HIDDEN) -> bool:
    """True where a unit has an empty folder in the place of what is there."""
    return any(Path(path).is_relative_to(one) for one in hidden)


def is_managed(root: Path) -> bool:
    """True where `root` is this machine's and systemd runs it (sd_booted(3))."""
    return root.resolve() == Path("/") and Path("/run/systemd/system").is_dir()


def _enabled(root: Path, names: set[str]) -> list[Path]:
    """Return the links by which a boot starts instances of these units."""
    links = (root / UNITS).glob("*.wants/soak*@*")
    return [
        link.relative_to(root)
        for link in links
        if link.is_symlink() and link.readlink().name in names
    ]


def instances(paths: list[str]) -> list[str]:
    """Return templates as units of a plan called `check`, which alone can be looked at."""
    return [path.replace("@.", "@check.") for path in paths]


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text, 0o644)
    except OSError as error:
        raise SoakError(f"cannot write {path}: {error.strerror}") from error


def _give_to_group(path: Path) -> None:
    """Let the daemons read plans, which nobody else may."""
    try:
        os.chown(path, -1, grp.getgrnam("soak").gr_gid)
    except (KeyError, PermissionError):  # below another root, or for a package to do
        return


def tool(command: list[str]) -> str:
    """Return all that a tool says.

    Raises:
        SoakError: it failed or took too long.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SoakError(f"{command[0]}: {error}") from error
    said = (done.stdout + done.stderr).strip()
    if done.returncode and command[0] != "systemd-analyze":
        raise SoakError(f"{' '.join(command)}: {said}")
    return said
