"""systemd units as files: render them for this installation, install, remove and check them."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import soak
from soak.core.errors import NotAvailableError, SoakError
from soak.service.files import write_atomically

UNITS = Path("etc/systemd/system")
SYSUSERS = Path("etc/sysusers.d/soak.conf")
MAN = Path("usr/local/share/man/man1/soak.1")
COMPLETION = Path("usr/local/share/bash-completion/completions/soak")
PLANS = Path("etc/soak")
CREDENTIALS = PLANS / "credentials"
_COMMON, _PROGRAM = "# common.conf\n", "/usr/bin/soak"
RENAMED_UNITS = tuple(UNITS / f"soak-{name}@.service" for name in ("begin", "failed", "owed"))
"""Units of earlier versions that have another name now: an installation removes them."""
HIDDEN_FOLDERS = ("/home", "/root", "/run/user")  # what ProtectHome= takes away
_PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")
_TOOL_SECONDS = 60


def rendered_files() -> dict[Path, str]:
    """Return the files, by their place below the root.

    Raises:
        NotAvailableError: this installation ships no units, or lies where a unit cannot name it.
    """
    folder = _shipped_folder()
    common = (folder / "common.conf").read_text()
    program = Path(sys.prefix) / "bin" / "soak"
    for part in required_folders():
        if not _PLAIN.fullmatch(part):
            raise NotAvailableError(f"{part}: a unit cannot name such a path")
    hidden = sorted(part for part in required_folders() if is_hidden(part))
    if hidden:  # a unit sees nothing of home folders but what it needs
        shown = f"ProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(hidden)}\n"
        common = common.replace("ProtectHome=yes\n", shown)
    files = {SYSUSERS: (folder / "soak.sysusers").read_text()}
    for path in sorted(folder.iterdir()):
        if path.suffix in {".service", ".target", ".timer"}:
            text = path.read_text().replace(_COMMON, common)
            files[UNITS / path.name] = text.replace(f"={_PROGRAM} ", f"={program} ")
    return files


def _installable(root: Path, documents: Mapping[Path, str]) -> dict[Path, str]:
    """Return the documents, such as the man page, if the root has a folder for man pages."""
    folder = root / MAN.parents[1]
    return dict(documents) if folder.is_dir() and os.access(folder, os.W_OK) else {}


def install(root: Path, documents: Mapping[Path, str], *, is_dry: bool) -> list[str]:
    """Write the files below `root`, reload systemd on this machine, and return what was done.

    Raises:
        SoakError: a file cannot be written, or a run still uses a unit that was renamed since.
    """
    steps = []
    outdated = [place for place in RENAMED_UNITS if (root / place).is_file()]
    if outdated:
        _release(root, {place.stem for place in outdated}, is_dry=is_dry)
    for place, text in {**rendered_files(), **_installable(root, documents)}.items():
        path = root / place
        is_there = path.is_file() and path.read_text() == text
        steps.append(f"{'same' if is_there else 'write'} {path}")
        if not is_there and not is_dry:
            _write(path, text)
    steps += _remove(root, outdated, is_dry=is_dry)
    commands = [["systemd-sysusers", str(root / SYSUSERS)], ["systemctl", "daemon-reload"]]
    if is_managed(root):
        steps += [f"run {' '.join(command)}" for command in commands]
    if not is_dry:
        for command in commands if is_managed(root) else []:
            run_tool(command)
        for folder in (root / PLANS, root / CREDENTIALS):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        _give_to_group(root / PLANS)
        (root / CREDENTIALS).chmod(0o700)  # systemd reads them as root
    steps += [f"folder {root / PLANS} for plans", f"folder {root / CREDENTIALS} for secrets"]
    return [*steps, *checkout_note(_shipped_folder())]


def checkout_note(units: Path) -> list[str]:
    """Return a warning where the units that are installed, and so the code, are those of a checkout."""
    checkout = units.parent
    if not (checkout / "pyproject.toml").is_file():
        return []
    return [f"note: the units run the code in {checkout}: what changes there changes under a run"]


def uninstall(root: Path, *, is_dry: bool) -> list[str]:
    """Remove what `install` wrote, and the links of enabled units; return what was done.

    Raises:
        SoakError: one of the units is running, or a file cannot be removed.
    """
    files = (*rendered_files(), *RENAMED_UNITS, MAN, COMPLETION)
    _release(root, own_units() | {place.stem for place in RENAMED_UNITS}, is_dry=is_dry)
    places = [place for place in files if (root / place).is_file()]
    places += _enabled_links(root, {place.name for place in files})
    steps = _remove(root, places, is_dry=is_dry)
    if is_managed(root) and not is_dry:
        run_tool(["systemctl", "daemon-reload"])
    return steps


def _release(root: Path, units: Collection[str], *, is_dry: bool) -> None:
    """Have systemd forget failed instances of these units of this machine.

    Raises:
        SoakError: an instance is running.
    """
    if not is_managed(root):
        return
    listed = run_tool(["systemctl", "list-units", "--plain", "--no-legend", "soak*@*"])
    running, failed = loaded_units(listed, units)
    if running:
        raise SoakError(
            f"{running[0]} is running: pause its run first with `systemctl stop 'soak*@*'`; "
            "started again it resumes"
        )
    if failed and not is_dry:
        run_tool(["systemctl", "reset-failed", *failed])


def _remove(root: Path, places: Collection[Path], *, is_dry: bool) -> list[str]:
    for place in places if not is_dry else ():
        try:
            (root / place).unlink()
        except OSError as error:
            raise SoakError(f"cannot remove {root / place}: {error.strerror}") from error
    return [f"remove {root / place}" for place in places]


def required_folders() -> set[str]:
    """Return the folders without which the program does not run."""
    return {sys.prefix, sys.base_prefix, str(Path(soak.__file__).parents[1])}


def own_units() -> set[str]:
    """Return how the names of our units begin, up to the instance: `soak-start@`."""
    return {place.stem for place in rendered_files() if place.stem.endswith("@")}


def loaded_units(listed: str, units: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which of these units run, and which have failed, by a list of systemctl's.

    One that failed runs no more, yet it is listed until somebody has seen it.
    """
    rows = [line.split() for line in listed.splitlines() if line.strip()]
    states = {unit: state for unit, _, state, *_ in rows if f"{unit.partition('@')[0]}@" in units}
    failed = [unit for unit, state in states.items() if state == "failed"]
    return [unit for unit in states if unit not in failed], failed


def _shipped_folder() -> Path:
    beside = Path(soak.__file__).parents[1] / "systemd"
    for folder in (beside, Path(sys.prefix) / "share" / "soakd" / "systemd"):
        if (folder / "common.conf").is_file():
            return folder
    raise NotAvailableError("this installation of soakd ships no units")


def is_hidden(path: str, hidden: Collection[str] = HIDDEN_FOLDERS) -> bool:
    """True where a unit has an empty folder in the place of what is there."""
    return any(Path(path).is_relative_to(one) for one in hidden)


def is_managed(root: Path) -> bool:
    """True where `root` is this machine's and systemd runs it (sd_booted(3))."""
    return root.resolve() == Path("/") and Path("/run/systemd/system").is_dir()


def _enabled_links(root: Path, names: set[str]) -> list[Path]:
    """Return the links by which a boot starts instances of these units."""
    links = (root / UNITS).glob("*.wants/soak*@*")
    return [
        link.relative_to(root)
        for link in links
        if link.is_symlink() and link.readlink().name in names
    ]


def check_instances(paths: list[str]) -> list[str]:
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


def run_tool(command: list[str]) -> str:
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


# --- What is wrong with units that were installed, told before a daemon finds it out at its start.

SERVICE_USER = "soak"
_ANY_UNIT = re.compile(r"\.(?:service|socket|target|timer|mount|path|slice|scope|device|swap)\b")
_READ, _ENTER = stat.S_IROTH, stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the daemons run as; without numbers somebody who owns nothing."""

    uid: int = -1
    gids: frozenset[int] = frozenset()

    def may(self, path: Path, bits: int) -> bool:
        """True where the mode of a file grants these bits, given as those of others."""
        found = path.stat()
        if found.st_uid == self.uid:
            bits <<= 6
        elif found.st_gid in self.gids:
            bits <<= 3
        return found.st_mode & bits == bits


def check_installed(root: Path, documents: Mapping[Path, str]) -> list[str]:
    """Return what is wrong with what is installed below `root`; of this machine also who the daemons are."""
    account, wrong = account_of(SERVICE_USER) if is_managed(root) else (Account(), [])
    files = {**rendered_files(), **_installable(root, documents)}
    for place, text in files.items():
        path = root / place
        if not path.is_file() or path.read_text() != text:
            wrong.append(f"{path} is not what was to be installed")
    wrong += program_faults(account)
    wrong += folder_faults(root, account if is_managed(root) else None)
    if is_managed(root) and shutil.which("systemd-analyze"):
        units = [str(root / place) for place in files if place.suffix == ".service"]
        said = run_tool(["systemd-analyze", "verify", "--man=no", *check_instances(units)])
        wrong += own_lines(said.splitlines(), own_units())
    return wrong


def program_faults(account: Account) -> list[str]:
    """Return what of the program the daemons could not read, where units see it at all."""
    shown = [Path(part) for part in required_folders() if is_hidden(part)]
    wrong = []
    for path in (Path(sys.prefix) / "bin" / "soak", Path(sys.executable).resolve()):
        if not path.exists():
            wrong.append(f"{path} is not there, and the units call it")
            continue
        closed = closed_part(path, account, shown) or closed_part(path.resolve(), account, shown)
        if closed:
            wrong.append(
                f"{path} cannot be run by the user {SERVICE_USER}: {closed} is closed to it"
            )
    for folder in sorted(_libraries()):
        sealed = closed_part(folder, account, shown) or closed_below(folder, account)
        if sealed:
            wrong.append(
                f"the user {SERVICE_USER} cannot import from {folder}: {sealed} is closed to it"
            )
    return wrong


def closed_part(
    path: Path, account: Account, shown: Iterable[Path], hidden: Collection[str] = HIDDEN_FOLDERS
) -> str:
    """Return the first part of a path that the daemons may not pass, or ''.

    Above what units are `shown` of a home folder they have empty folders of their own.
    """
    for part in (*reversed(path.parents), path):
        if is_hidden(str(part), hidden) and not any(part.is_relative_to(one) for one in shown):
            continue
        if not account.may(part, _ENTER):
            return str(part)
    return "" if account.may(path, _READ) else str(path)


def closed_below(folder: Path, account: Account) -> str:
    """Return something below a folder that the daemons may not read, or ''."""
    for path in _code_below(folder):
        if not account.may(path, _READ | _ENTER if path.is_dir() else _READ):
            return str(path)
    return ""


def folder_faults(root: Path, account: Account | None) -> list[str]:
    """Return what lets the wrong people at plans and secrets; without an account owners are not looked at."""
    plans, secrets = root / PLANS, root / CREDENTIALS
    wrong = [f"{path} is not a folder" for path in (plans, secrets) if not path.is_dir()]
    if wrong:
        return wrong
    if plans.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong.append(f"{plans}: others than root may write plans: chmod 750 {plans}")
    if secrets.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        wrong.append(f"{secrets} is open to others than root: chmod 700 {secrets}")
    if account is not None:
        owned = (path for path in (plans, secrets) if path.stat().st_uid != 0)
        wrong += [f"{path} does not belong to root: chown root {path}" for path in owned]
        if not account.may(plans, _READ | _ENTER):
            wrong.append(
                f"{plans} is closed to the daemons: chgrp {SERVICE_USER} {plans}; chmod 750 {plans}"
            )
    return wrong


def own_lines(said: Iterable[str], units: Iterable[str]) -> list[str]:
    """Return the lines that name a unit of ours, or none at all: what others shipped is not ours to mend."""
    ours = re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, sorted(units))) + ")")
    return [line for line in said if line and (ours.search(line) or not _ANY_UNIT.search(line))]


def account_of(name: str) -> tuple[Account, list[str]]:
    """Return the user and the group of a name, and which of them there is not."""
    missing = []
    uid, gids = -1, set[int]()
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        missing.append(f"there is no user {name}: systemd-sysusers makes it")
    try:
        gids.add(grp.getgrnam(name).gr_gid)
    except KeyError:
        missing.append(f"there is no group {name}: systemd-sysusers makes it")
    return Account(uid, frozenset(gids)), missing


def _libraries() -> set[Path]:
    """Return the folders from which the daemons import."""
    beside = Path(soak.__file__).parents[1]
    ours = {beside / name for name in ("soak", "probes", "detectors", "spark")}
    return {path for path in ours | {Path(sysconfig.get_path("purelib"))} if path.is_dir()}


def _code_below(folder: Path) -> Iterator[Path]:
    """Give all below a folder but what Python has compiled, which it can do without."""
    for where, folders, files in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        every = (Path(where, name) for name in (*folders, *files))
        yield from (path for path in every if not path.is_symlink())
