"""What is wrong with units that were installed, told before a daemon finds it out at its start."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import stat
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import soak
from soak.cli._units import (
    CREDENTIALS,
    HIDDEN,
    PLANS,
    for_people,
    instances,
    is_hidden,
    is_managed,
    needed,
    own_units,
    rendered,
    tool,
)

USER = "soak"
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


def check(root: Path) -> list[str]:
    """Return what is wrong with what is installed below `root`; of this machine also who the daemons are."""
    account, wrong = account_of(USER) if is_managed(root) else (Account(), [])
    files = {**rendered(), **for_people(root)}
    for place, text in files.items():
        path = root / place
        if not path.is_file() or path.read_text() != text:
            wrong.append(f"{path} is not what was to be installed")
    wrong += program_faults(account)
    wrong += folder_faults(root, account if is_managed(root) else None)
    if is_managed(root) and shutil.which("systemd-analyze"):
        units = [str(root / place) for place in files if place.suffix == ".service"]
        said = tool(["systemd-analyze", "verify", "--man=no", *instances(units)])
        wrong += about_ours(said.splitlines(), own_units())
    return wrong


def program_faults(account: Account) -> list[str]:
    """Return what of the program the daemons could not read, where units see it at all."""
    shown = [Path(part) for part in needed() if is_hidden(part)]
    wrong = []
    for path in (Path(sys.prefix) / "bin" / "soak", Path(sys.executable).resolve()):
        if not path.exists():
            wrong.append(f"{path} is not there, and the units call it")
            continue
        closed = closed_part(path, account, shown) or closed_part(path.resolve(), account, shown)
        if closed:
            wrong.append(f"{path} cannot be run by the user {USER}: {closed} is closed to it")
    for folder in sorted(_libraries()):
        sealed = closed_part(folder, account, shown) or closed_below(folder, account)
        if sealed:
            wrong.append(f"the user {USER} cannot import from {folder}: {sealed} is closed to it")
    return wrong


def closed_part(
    path: Path, account: Account, shown: Iterable[Path], hidden: Collection[str] = HIDDEN
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
                f"{plans} is closed to the daemons: chgrp {USER} {plans}; chmod 750 {plans}"
            )
    return wrong


def about_ours(said: Iterable[str], units: Iterable[str]) -> list[str]:
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
