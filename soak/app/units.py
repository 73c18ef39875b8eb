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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import soak
from soak.app.unit_host import (
    FULL_HOST,
    Host,
    fitted,
    host_from,
    host_notes,
    label_faults,
)
from soak.core.errors import NotAvailableError, SoakError
from soak.service.files import shipped_folder, write_atomically

UNITS = Path("etc/systemd/system")
SYSUSERS = Path("etc/sysusers.d/soak.conf")
MAN = Path("usr/local/share/man/man1/soak.1")
COMPLETION = Path("usr/local/share/bash-completion/completions/soak")
PLANS = Path("etc/soak")
CREDENTIALS = PLANS / "credentials"
_COMMON, _PROGRAM = "# common.conf\n", "/usr/bin/soak"
_CURRENT_NAMES = {
    "soak-begin@": "soak-start@",
    "soak-failed@": "soak-notify-failure@",
    "soak-owed@": "soak-pending@",
}
"""Current names of the template units that were renamed, by their former names."""
RENAMED_UNITS = tuple(UNITS / f"{former}.service" for former in _CURRENT_NAMES)
"""Units of earlier versions under names that have changed: an installation removes them."""
HIDDEN_FOLDERS = ("/home", "/root", "/run/user")  # hidden by ProtectHome=
_PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+")
_TOOL_SECONDS = 60
SERVICE_USER = "soak"
_ANY_UNIT = re.compile(r"\.(?:service|socket|target|timer|mount|path|slice|scope|device|swap)\b")
_READ, _ENTER = stat.S_IROTH, stat.S_IXOTH
_MAX_USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
_SELINUX_ENFORCES = Path("/sys/fs/selinux/enforce")


def rendered_files(host: Host = FULL_HOST) -> dict[Path, str]:
    """Return the files to install on a host, by their path below the root.

    Raises:
        NotAvailableError: this installation ships no units, or a unit cannot express its path.
    """
    folder = _shipped_folder()
    common = (folder / "common.conf").read_text()
    program = Path(sys.prefix) / "bin" / "soak"
    for part in required_folders():
        if not _PLAIN.fullmatch(part):
            raise NotAvailableError(f"{part}: a unit cannot contain such a path")
    hidden = sorted(part for part in required_folders() if is_hidden(part))
    if hidden:  # of home folders a unit sees only what it needs
        shown = f"ProtectHome=tmpfs\nBindReadOnlyPaths={' '.join(hidden)}\n"
        common = common.replace("ProtectHome=yes\n", shown)
    files = {SYSUSERS: (folder / "soak.sysusers").read_text()}
    for path in sorted(folder.iterdir()):
        if path.suffix in {".service", ".target", ".timer"}:
            text = path.read_text().replace(_COMMON, common)
            text = text.replace(f"={_PROGRAM} ", f"={program} ")
            files[UNITS / path.name] = fitted(text, host)
    return files


def host_of(root: Path) -> Host:
    """Return what the units have to know of this machine; below another root, of a host that lacks nothing.

    Raises:
        NotAvailableError: its systemd is too old.
    """
    if not is_managed(root):
        return FULL_HOST
    return host_from(run_tool(["systemctl", "--version"]), _text_of(_MAX_USER_NAMESPACES))


def _installable(root: Path, documents: Mapping[Path, str]) -> dict[Path, str]:
    """Return the documents, such as the man page, if the root has a folder for man pages."""
    folder = root / MAN.parents[1]
    return dict(documents) if folder.is_dir() and os.access(folder, os.W_OK) else {}


def install(root: Path, documents: Mapping[Path, str], *, is_dry: bool) -> list[str]:
    """Write the files below `root`, reload systemd on this machine, and return what was done.

    Raises:
        NotAvailableError: systemd is too old, or as of `rendered_files`.
        SoakError: a file cannot be written or moved, or a run still uses a unit that was renamed since.
    """
    host = host_of(root)
    steps = []
    outdated = [place for place in RENAMED_UNITS if (root / place).is_file()]
    if outdated:
        steps += _release(root, {place.stem for place in outdated}, is_dry=is_dry)
    for place, text in {**rendered_files(host), **_installable(root, documents)}.items():
        path = root / place
        is_there = path.is_file() and _text_of(path) == text
        steps.append(f"{'same' if is_there else 'write'} {path}")
        if not is_there and not is_dry:
            _write(path, text)
    steps += _remove(root, outdated, is_dry=is_dry)
    steps += _move_drop_ins(root, is_dry=is_dry)
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
    return [*steps, *host_notes(host), *manager_note(root), *checkout_note(_shipped_folder())]


def manager_note(root: Path) -> list[str]:
    """Return a warning if the units are for this machine, and systemd does not run it."""
    if root.resolve() != Path("/") or is_managed(root):
        return []
    text = (
        "note: systemd does not run this machine, as in most containers, and in WSL without "
        "systemd=true in /etc/wsl.conf: the units are of no use until it does; `soak run` needs none"
    )
    return [text]


def checkout_note(units: Path) -> list[str]:
    """Return a warning if the installed units run the code of a checkout."""
    checkout = units.parent
    if not (checkout / "pyproject.toml").is_file():
        return []
    return [f"note: the units run the code in {checkout}: changes there affect a run in progress"]


def uninstall(root: Path, *, is_dry: bool) -> list[str]:
    """Remove what `install` wrote, and the links of enabled units; return what was done.

    Raises:
        SoakError: one of the units is running, or a file cannot be removed.
    """
    files = (*rendered_files(), *RENAMED_UNITS, MAN, COMPLETION)
    steps = _release(root, own_units() | {place.stem for place in RENAMED_UNITS}, is_dry=is_dry)
    places = [place for place in files if (root / place).is_file()]
    places += _enabled_links(root, {place.name for place in files})
    steps += _remove(root, places, is_dry=is_dry)
    if is_managed(root) and not is_dry:
        run_tool(["systemctl", "daemon-reload"])
    return steps


def _release(root: Path, units: Collection[str], *, is_dry: bool) -> list[str]:
    """Have systemd forget failed instances of these units of this machine.

    Returns:
        In a dry run, what would be refused.

    Raises:
        SoakError: an instance is running, and this is no dry run.
    """
    if not is_managed(root):
        return []
    listed = run_tool(["systemctl", "list-units", "--plain", "--no-legend", "soak*@*"])
    running, failed = loaded_units(listed, units)
    if running and is_dry:
        return [f"refused: {request_to_stop(running)}"]
    if running:
        raise SoakError(request_to_stop(running))
    if failed and not is_dry:
        run_tool(["systemctl", "reset-failed", *failed])
    return []


def request_to_stop(running: Sequence[str]) -> str:
    """Return what to do about units that are running before they are replaced or removed."""
    text = (
        f"{running[0]} is running: pause its run first with `systemctl stop 'soak*@*'`; "
        "started again it resumes"
    )
    pending = [_current_name(unit) for unit in running if unit.startswith("soak-owed@")]
    if pending:
        text += (
            "; notifications are still pending: after `soak install-units` send them with "
            f"`systemctl start {' '.join(pending)}`"
        )
    return text


def _current_name(name: str) -> str:
    """Return the name of a unit, or of its folder of drop-ins, with current names for former ones."""
    for former, current in _CURRENT_NAMES.items():
        name = name.replace(former, current)
    return name


def _former_drop_ins(root: Path) -> dict[Path, Path]:
    """Return the folders of drop-ins that systemd no longer reads, with those that it reads instead."""
    patterns = [f"{former}*.service.d" for former in _CURRENT_NAMES]
    found = [path for pattern in patterns for path in sorted((root / UNITS).glob(pattern))]
    return {path: path.with_name(_current_name(path.name)) for path in found}


def _move_drop_ins(root: Path, *, is_dry: bool) -> list[str]:
    """Give drop-ins of renamed units to the current ones; a file that is there already stays as it is."""
    steps = []
    for folder, current in _former_drop_ins(root).items():
        try:
            moves = {folder: current}
            if current.exists():
                there = {path.name for path in current.iterdir()}
                moves = {p: current / p.name for p in folder.iterdir() if p.name not in there}
            for path, target in sorted(moves.items()):
                steps.append(f"move {path} to {target}")
                if not is_dry:
                    path.rename(target)
            if not is_dry and folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
        except OSError as error:
            raise SoakError(f"cannot move {folder} to {current}: {error.strerror}") from error
    return steps


def _remove(root: Path, places: Collection[Path], *, is_dry: bool) -> list[str]:
    for place in places if not is_dry else ():
        try:
            (root / place).unlink()
        except OSError as error:
            raise SoakError(f"cannot remove {root / place}: {error.strerror}") from error
    return [f"remove {root / place}" for place in places]


def required_folders() -> set[str]:
    """Return the folders that the program needs to run."""
    return {sys.prefix, sys.base_prefix, str(Path(soak.__file__).parents[1])}


def own_units() -> set[str]:
    """Return the names of the template units without instance and suffix, such as `soak-start@`."""
    return {place.stem for place in rendered_files() if place.stem.endswith("@")}


def loaded_units(listed: str, units: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which of these units are running and which have failed, from `systemctl list-units`.

    A failed unit is listed until `systemctl reset-failed`.
    """
    rows = [line.split() for line in listed.splitlines() if line.strip()]
    rows = [row if "@" in row[0] else row[1:] for row in rows]  # a dot marks a failed unit
    states = {unit: state for unit, _, state, *_ in rows if f"{unit.partition('@')[0]}@" in units}
    failed = [unit for unit, state in states.items() if state == "failed"]
    return [unit for unit in states if unit not in failed], failed


def _shipped_folder() -> Path:
    return shipped_folder("systemd", "common.conf")


def is_hidden(path: str, hidden: Collection[str] = HIDDEN_FOLDERS) -> bool:
    """Return whether ProtectHome= hides a path from a unit."""
    return any(Path(path).is_relative_to(one) for one in hidden)


def is_managed(root: Path) -> bool:
    """Return whether `root` is the root of this machine and systemd runs it (sd_booted(3))."""
    return root.resolve() == Path("/") and Path("/run/systemd/system").is_dir()


def _enabled_links(root: Path, names: set[str]) -> list[Path]:
    """Return the links with which a boot starts instances of these units."""
    links = (root / UNITS).glob("*.wants/soak*@*")
    return [
        link.relative_to(root)
        for link in links
        if link.is_symlink() and link.readlink().name in names
    ]


def check_instances(paths: list[str]) -> list[str]:
    """Return template units as instances named `check`: systemd-analyze verifies only instances."""
    return [path.replace("@.", "@check.") for path in paths]


def _text_of(path: Path) -> str:
    """Return what a file holds; "" for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text, 0o644)
    except OSError as error:
        raise SoakError(f"cannot write {path}: {error.strerror}") from error


def _give_to_group(path: Path) -> None:
    """Let the daemons, and no other user, read the plans."""
    try:
        os.chown(path, -1, grp.getgrnam("soak").gr_gid)
    except (KeyError, PermissionError):  # below another root, or left to a package
        return


def run_tool(command: list[str]) -> str:
    """Return the output of a program.

    Raises:
        SoakError: it failed or took too long.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},  # its words in English
            check=False,
            timeout=_TOOL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SoakError(f"{command[0]}: {error}") from error
    output = (done.stdout + done.stderr).strip()
    if done.returncode and command[0] != "systemd-analyze":
        raise SoakError(f"{' '.join(command)}: {output}")
    return output


@dataclass(frozen=True, slots=True)
class Account:
    """The user of the daemons; without ids a user that owns nothing."""

    uid: int = -1
    gids: frozenset[int] = frozenset()

    def may(self, path: Path, bits: int) -> bool:
        """Return whether a file grants this user the permissions `bits`, given as those of others."""
        found = path.stat()
        if found.st_uid == self.uid:
            bits <<= 6
        elif found.st_gid in self.gids:
            bits <<= 3
        return found.st_mode & bits == bits


def check_installed(root: Path, documents: Mapping[Path, str]) -> list[str]:
    """Return the problems of an installation below `root`; on this machine also those of the user `soak`."""
    account, wrong = account_of(SERVICE_USER) if is_managed(root) else (Account(), [])
    files = {**rendered_files(host_of(root)), **_installable(root, documents)}
    for place, text in files.items():
        path = root / place
        if not path.is_file() or _text_of(path) != text:
            wrong.append(f"{path} is missing or differs: run `soak install-units` again")
    wrong += [
        f"{folder} has no effect, its unit was renamed: move what is still needed to {current}"
        for folder, current in _former_drop_ins(root).items()
    ]
    wrong += program_faults(account)
    wrong += folder_faults(root, account if is_managed(root) else None)
    if is_managed(root) and _text_of(_SELINUX_ENFORCES).strip() == "1":
        wrong += label_faults(programs())
    if is_managed(root) and shutil.which("systemd-analyze"):
        units = [str(root / place) for place in files if place.suffix == ".service"]
        output = run_tool(["systemd-analyze", "verify", "--man=no", *check_instances(units)])
        wrong += own_lines(output.splitlines(), own_units())
    return wrong


def programs() -> tuple[Path, Path]:
    """Return the programs that systemd starts: `soak`, and the Python that runs it."""
    return Path(sys.prefix) / "bin" / "soak", Path(sys.executable).resolve()


def program_faults(account: Account) -> list[str]:
    """Return the parts of the program that the daemons cannot read, as far as units see them."""
    shown = [Path(part) for part in required_folders() if is_hidden(part)]
    wrong = []
    for path in programs():
        if not path.exists():
            wrong.append(f"{path} does not exist, and the units call it")
            continue
        closed = closed_part(path, account, shown) or closed_part(path.resolve(), account, shown)
        if closed:
            wrong.append(
                f"{path} cannot be run by the user {SERVICE_USER}: no permission for {closed}"
            )
    for folder in sorted(_libraries()):
        closed = closed_part(folder, account, shown) or closed_below(folder, account)
        if closed:
            wrong.append(
                f"the user {SERVICE_USER} cannot import from {folder}: no permission for {closed}"
            )
    return wrong


def closed_part(
    path: Path, account: Account, shown: Iterable[Path], hidden: Collection[str] = HIDDEN_FOLDERS
) -> str:
    """Return the first part of a path for which the daemons lack permission, or "".

    Of home folders units see the `shown` paths; the parts above them are empty folders of their own.
    """
    for part in (*reversed(path.parents), path):
        if is_hidden(str(part), hidden) and not any(part.is_relative_to(one) for one in shown):
            continue
        if not account.may(part, _ENTER):
            return str(part)
    return "" if account.may(path, _READ) else str(path)


def closed_below(folder: Path, account: Account) -> str:
    """Return a path below a folder that the daemons cannot read, or ""."""
    for path in _code_below(folder):
        if not account.may(path, _READ | _ENTER if path.is_dir() else _READ):
            return str(path)
    return ""


def folder_faults(root: Path, account: Account | None) -> list[str]:
    """Return wrong permissions of plans and secrets; without an account owners are not checked."""
    plans, secrets = root / PLANS, root / CREDENTIALS
    wrong = [f"{path} is not a folder" for path in (plans, secrets) if not path.is_dir()]
    if wrong:
        return wrong
    if plans.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong.append(f"{plans} can be written by users other than root: chmod 750 {plans}")
    if secrets.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        wrong.append(f"{secrets} can be read by users other than root: chmod 700 {secrets}")
    if account is not None:
        owned = (path for path in (plans, secrets) if path.stat().st_uid != 0)
        wrong += [f"{path} is not owned by root: chown root {path}" for path in owned]
        if not account.may(plans, _READ | _ENTER):
            wrong.append(
                f"{plans} cannot be read by the daemons: chgrp {SERVICE_USER} {plans}; chmod 750 {plans}"
            )
    return wrong


def own_lines(lines: Iterable[str], units: Iterable[str]) -> list[str]:
    """Return the lines that name one of these units, or no unit at all."""
    ours = re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, sorted(units))) + ")")
    return [line for line in lines if line and (ours.search(line) or not _ANY_UNIT.search(line))]


def account_of(name: str) -> tuple[Account, list[str]]:
    """Return the account of a user and a group of this name, and a line for each that is missing."""
    missing = []
    uid, gids = -1, set[int]()
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        missing.append(f"there is no user {name}: systemd-sysusers creates it")
    try:
        gids.add(grp.getgrnam(name).gr_gid)
    except KeyError:
        missing.append(f"there is no group {name}: systemd-sysusers creates it")
    return Account(uid, frozenset(gids)), missing


def _libraries() -> set[Path]:
    """Return the folders that the daemons import from."""
    home = Path(soak.__file__).parents[1]
    ours = {home / name for name in ("soak", "probes", "detectors", "spark")}
    return {path for path in ours | {Path(sysconfig.get_path("purelib"))} if path.is_dir()}


def _code_below(folder: Path) -> Iterator[Path]:
    """Give every path below a folder except compiled code, which Python does not need."""
    for where, folders, files in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        every = (Path(where, name) for name in (*folders, *files))
        yield from (path for path in every if not path.is_symlink())
