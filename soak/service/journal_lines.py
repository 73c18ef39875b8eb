"""Log lines as systemd's journal takes them from a stream: the priority in front, sd-daemon(3), and no stamp.

Without it all that a daemon says is of one priority, and `journalctl -p warning` shows nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

_PRIORITIES = {  # syslog(3)
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}


class Lines(logging.Formatter):
    """Each line of a record has its priority: the journal takes each for a message of its own."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return with_priority(record.levelno, super().format(record))


def with_priority(level: int, text: str) -> str:
    """Return the text with the priority of this level of `logging` in front of each line."""
    least = max((known for known in _PRIORITIES if known <= level), default=logging.DEBUG)
    return "\n".join(f"<{_PRIORITIES[least]}>{line}" for line in text.split("\n"))


def is_journal(environment: Mapping[str, str] | None = None, descriptor: int = 2) -> bool:
    """True where what this process writes there, by default its errors, goes straight to the journal.

    Systemd tells the stream's device and inode (systemd.exec(5)): a child's may be a file by now.
    """
    if environment is None:
        environment = os.environ
    try:
        found = os.fstat(descriptor)
    except OSError:  # it is closed
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def complain(text: str) -> None:
    """Say on standard error why this program ends."""
    sys.stderr.write(f"{with_priority(logging.ERROR, text) if is_journal() else text}\n")


def set_up() -> None:
    """Have the log go to standard error, as a person or as the journal reads it."""
    handler = logging.StreamHandler()
    if is_journal():
        handler.setFormatter(Lines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
