"""The typed errors of the project; callers distinguish three kinds (see `docs/design.md`)."""

from __future__ import annotations


class SoakError(Exception):
    """Base of all errors that are meant for the user: a message, no traceback."""


class PlanError(SoakError):
    """The plan, or what it asks of this machine or cluster, cannot be run; exit code 2."""


class NotNowError(PlanError):
    """The plan is valid, but cannot run now: the cluster does not answer, or a drive is full."""


class NotAvailableError(SoakError):
    """A feature is missing on this machine or cluster: reported once, not counted as a failure."""


class ProbeError(SoakError):
    """A reading failed this time: it is counted, and the probe continues."""


class BrokerError(SoakError):
    """A broker refused or did not answer."""


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
    """One setting of a client is wrong; `place` is its key path in the plug-in's section of a plan."""

    def __init__(self, place: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.place = place
