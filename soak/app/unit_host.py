"""What the units need of a host: its version of systemd, user namespaces, and labels of SELinux."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import NotAvailableError

OLDEST_SYSTEMD = 249
"""Before it there is no `OnSuccess=`, by which a run that has ended starts the unit of its report."""
CREDENTIALS_SYSTEMD = 250
"""Before it `LoadCredential=` takes no folder."""
FULL_SYSTEMD = 251
"""The first version with everything that the units use, by systemd's NEWS."""

_FORBIDDEN = ("home", "tmp")
"""Parts of the types of files that SELinux lets no service execute."""


@dataclass(frozen=True, slots=True)
class Host:
    systemd: int = FULL_SYSTEMD  # its version
    has_user_namespaces: bool = True


FULL_HOST = Host()
"""A host that lacks nothing."""


def host_from(printed: str, max_user_namespaces: str) -> Host:
    """Return the host by the output of `systemctl --version` and the kernel's user.max_user_namespaces.

    Raises:
        NotAvailableError: its systemd is too old for the units.
    """
    found = re.match(r"systemd (\d+)", printed)
    if found is None or int(found[1]) < OLDEST_SYSTEMD:
        raise NotAvailableError(
            f"the units need systemd {OLDEST_SYSTEMD} or newer, and this host has "
            f"{found[0] if found else 'an unknown one'}; `soak run` needs none"
        )
    return Host(int(found[1]), has_user_namespaces=max_user_namespaces.strip() != "0")


def fitted(unit: str, host: Host) -> str:
    """Return a unit as this host can run it: without user namespaces it would fail with 217/USER."""
    return unit if host.has_user_namespaces else unit.replace("PrivateUsers=yes", "PrivateUsers=no")


def host_notes(host: Host) -> list[str]:
    """Return what does not work on this host, or is done in another way, for whoever installs the units."""
    notes = []
    if host.systemd < FULL_SYSTEMD:
        lacks = f"before {FULL_SYSTEMD} a unit that fails again and again is notified each time"
        if host.systemd < CREDENTIALS_SYSTEMD:
            secrets = "units with secrets in /etc/soak/credentials do not start"
            lacks += f", and before {CREDENTIALS_SYSTEMD} {secrets}"
        notes.append(f"note: systemd {host.systemd} on this host: {lacks}")
    if not host.has_user_namespaces:
        notes.append("note: user.max_user_namespaces is 0 on this host: units have PrivateUsers=no")
    return notes


def label_of(path: Path) -> str:
    """Return the SELinux label of a file, such as `system_u:object_r:bin_t:s0`; "" without one."""
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError:
        return ""


def label_faults(paths: Iterable[Path], label: Callable[[Path], str] = label_of) -> list[str]:
    """Return the programs that SELinux keeps systemd from starting: they have the type of a home or /tmp.

    Files that were moved keep it until restorecon(8) sets that of their path.
    """
    types = {path: [*label(path).split(":"), "", ""][2] for path in paths}  # behind user and role
    return [
        f"SELinux keeps systemd from starting {path}, which has the type {kind}: `restorecon -R "
        f"{path.parent}`; in a home folder that does not help, install below /opt"
        for path, kind in types.items()
        if any(part in kind for part in _FORBIDDEN)
    ]
