"""systemd's units as files: shipped as templates, installed for the program that is called."""

from __future__ import annotations

import grp
import os
import re
import shutil
import subprocess
import sys
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
_HIDDEN = ("/home", "/root", "/run/user")  # what ProtectHome= takes away
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
    needed = {sys.prefix, sys.base_prefix, str(Path(soak.__file__).parents[1])}
    for part in needed:
        if not _PLAIN.fullmatch(part):
            raise NotAvailableError(f"{part}: a unit cannot name such a path")
    hidden = sorted(part for part in needed if _is_hidden(part))
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
    if _is_managed(root):
        steps += [f"run {' '.join(command)}" for command in commands]
    if not is_dry:
        for command in commands if _is_managed(root) else []:
            _run(command)
        for folder in (root / PLANS, root / CREDENTIALS):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        _give_to_group(root / PLANS)
        (root / CREDENTIALS).chmod(0o700)  # systemd reads them as root
    return [*steps, f"folder {root / PLANS} for plans", f"folder {root / CREDENTIALS} for secrets"]


def removed(root: Path, *, is_dry: bool) -> list[str]:
    """Remove what `installed` wrote, and the links of what was enabled; return what was done.

    Raises:
        SoakError: a unit of ours is running, or a file cannot be removed.
    """
    if _is_managed(root):
        running = _run(["systemctl", "list-units", "--plain", "--no-legend", "soak*@*"]).split("\n")
        names = [line.split()[0] for line in running if line.strip()]
        if names:
            raise SoakError(f"{names[0]} is loaded: stop it first, as by systemctl stop 'soak*@*'")
    files = rendered()
    places = [place for place in (*files, MAN, COMPLETION) if (root / place).is_file()]
    places += _enabled(root, {place.name for place in files})
    if not is_dry:
        for place in places:
            try:
                (root / place).unlink()
            except OSError as error:
                raise SoakError(f"cannot remove {root / place}: {error.strerror}") from error
        if _is_managed(root):
            _run(["systemctl", "daemon-reload"])
    return [f"remove {root / place}" for place in places]


def check(root: Path) -> list[str]:
    """Return what is wrong with what is installed below `root`."""
    wrong = []
    files = {**rendered(), **for_people(root)}
    for place, text in files.items():
        path = root / place
        if not path.is_file() or path.read_text() != text:
            wrong.append(f"{path} is not what was to be installed")
    for path in (Path(sys.prefix) / "bin" / "soak", Path(sys.executable).resolve()):
        closed = _closed_part(path)
        if closed:
            wrong.append(f"{path} cannot be run by another user: {closed} is closed to others")
    if _is_managed(root) and shutil.which("systemd-analyze"):
        units = [str(root / place) for place in files if place.suffix == ".service"]
        wrong += _run(["systemd-analyze", "verify", "--man=no", *_instances(units)]).splitlines()
    return wrong


def _shipped() -> Path:
    beside = Path(soak.__file__).parents[1] / "systemd"
    for folder in (beside, Path(sys.prefix) / "share" / "soakd" / "systemd"):
        if (folder / "common.conf").is_file():
            return folder
    raise NotAvailableError("this installation of soakd ships no units")


def _is_hidden(path: str) -> bool:
    return any(Path(path).is_relative_to(hidden) for hidden in _HIDDEN)


def _is_managed(root: Path) -> bool:
    """True where `root` is this machine's and systemd runs it (sd_booted(3))."""
    return root.resolve() == Path("/") and Path("/run/systemd/system").is_dir()


def _closed_part(path: Path) -> str:
    """Return the first folder on a path that others may not enter, unless units are shown it."""
    for part in reversed(path.parents):
        if not _is_hidden(str(part)) and not part.stat().st_mode & 0o001:
            return str(part)
    return ""


def _enabled(root: Path, names: set[str]) -> list[Path]:
    """Return the links by which a boot starts instances of these units."""
    links = (root / UNITS).glob("*.wants/soak*@*")
    return [
        link.relative_to(root)
        for link in links
        if link.is_symlink() and link.readlink().name in names
    ]


def _instances(paths: list[str]) -> list[str]:
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


def _run(command: list[str]) -> str:
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
