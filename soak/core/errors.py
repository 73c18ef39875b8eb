"""The typed errors of the project; callers distinguish three kinds: not available, failed, a bug."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from soak.core.model import Reading

_LINE = re.compile(r":(\d+): ")  # of `file:line: key: what is wrong`


class SoakError(Exception):
    """Base of all errors that are meant for the user: a message, no traceback."""


class PlanError(SoakError):
    """The plan, or what it asks of this machine or cluster, cannot be run; exit code 2.

    `place` is the key path in the plan, if the error is about one key; `others` were found with it.
    """

    place: tuple[str | int, ...] | None = None
    others: tuple[PlanError, ...] = ()


class NotNowError(PlanError):
    """The plan is valid, but cannot run now: the cluster does not answer, or a drive is full."""


class NotAvailableError(SoakError):
    """A feature is missing on this machine or cluster: reported once, not counted as a failure."""


class ProbeError(SoakError):
    """A reading failed this time: it is counted, and the probe continues."""


class PartialReadingError(ProbeError):
    """A part of a reading failed; `reading` has what was measured all the same."""

    def __init__(self, message: str, reading: Reading) -> None:
        super().__init__(message)
        self.reading = reading


class BrokerError(SoakError):
    """A broker refused or did not answer; `address` is the key of the address that failed, if it is known."""

    address = ""


class LoginMissingError(BrokerError):
    """A broker answered and wants a login, token or certificate that the settings do not have.

    `logins`: the mechanisms of which it takes one, where it names them.
    """

    def __init__(self, message: str, logins: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.logins = tuple(logins)


class LoginRefusedError(BrokerError):
    """A broker answered and refused the login of the settings."""


class JournalError(SoakError):
    """A journal cannot be written or is of a version that this program does not know."""


class RunFolderError(SoakError):
    """A run folder is missing, damaged or in use by another process."""


class FindingsError(SoakError):
    """The findings file cannot be used: damaged, of a newer version, or its disk fails."""


class FindingsBusyError(FindingsError):
    """Another process held the findings file for longer than the timeout: try again later."""


class LabError(SoakError):
    """A lab broker or one of its files could not be downloaded or started."""


class SettingError(BrokerError):
    """One setting of a client is wrong; `place` is its key path in the plug-in's section of a plan.

    `others` were found with it.
    """

    def __init__(self, place: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place
        self.others: tuple[SettingError, ...] = ()


def wrong_settings(*checks: Callable[[], object]) -> list[SettingError]:
    """Return the wrong settings that these checks raise."""
    found: list[SettingError] = []
    for check in checks:
        try:
            check()
        except SettingError as error:
            found += [error, *error.others]
    return found


def raise_settings(faults: Sequence[SettingError]) -> None:
    """Raise the first of several wrong settings, which holds the others, one a key; nothing without any."""
    by_place: dict[tuple[str, ...], SettingError] = {}
    for fault in faults:
        by_place.setdefault(fault.place, fault)
    if by_place:
        first, *others = by_place.values()
        first.others = tuple(others)
        raise first


def combined(faults: Sequence[PlanError]) -> PlanError:
    """Return one error that lists several faults of a plan in order of their lines; a single one as it is."""
    if len(faults) == 1:
        return faults[0]
    by_line = sorted(faults, key=_line_of)
    text = "\n".join([f"{len(faults)} faults", *(f"  {fault}" for fault in by_line)])
    is_not_now = all(isinstance(fault, NotNowError) for fault in faults)
    return NotNowError(text) if is_not_now else PlanError(text)


def raise_combined(faults: Sequence[PlanError]) -> None:
    """Raise several faults of a plan as one error; nothing where there are none."""
    if faults:
        raise combined(faults)


def found_by(*checks: Callable[[], None]) -> list[PlanError]:
    """Return the faults that these checks raise."""
    faults: list[PlanError] = []
    for check in checks:
        try:
            check()
        except PlanError as error:
            faults += [error, *error.others]
    return faults


def not_now(error: PlanError) -> NotNowError:
    """Return the same error as one that may be over later."""
    found = NotNowError(str(error))
    found.place = error.place
    return found


def _line_of(fault: PlanError) -> int:
    match = _LINE.search(str(fault))
    return int(match[1]) if match else 0
