"""The niceness of a service counts beside other services: its group has it too."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from soak.service import children, niceness
from tests.fakes import FakeClock

SPREAD = """
import os
from soak.core.clock import SystemClock
from soak.service import niceness
os.nice(7)
niceness.spread(SystemClock(), {"SYSTEMD_EXEC_PID": str(%s)})
print(os.getpriority(os.PRIO_PROCESS, 0), open("/proc/self/autogroup").read())
"""


@pytest.mark.skipif(not niceness.OWN_GROUP.exists(), reason="this kernel has no groups of sessions")
@pytest.mark.parametrize(("pid", "is_told"), [("os.getpid()", True), ("os.getppid()", False)])
def test_the_group_of_a_main_process_gets_its_niceness(pid: str, *, is_told: bool) -> None:
    """What a service starts, and what runs by hand, leaves the group as it is."""
    done = subprocess.run(
        children.mortal([sys.executable, "-c", SPREAD % pid]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )

    own, *_, group = done.stdout.split()
    assert group == (own if is_told else "0")


class Busy:
    """A group that takes a word only so often."""

    def __init__(self, refusals: int, number: int) -> None:
        self.left, self.number, self.taken = refusals, number, list[str]()

    def write_text(self, text: str) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number))
        self.taken.append(text)


@pytest.mark.parametrize(
    ("refusals", "number", "taken"),
    [(0, 0, ["5"]), (3, errno.EAGAIN, ["5"]), (99, errno.EAGAIN, []), (1, errno.EACCES, [])],
)
def test_a_busy_kernel_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, refusals: int, number: int, taken: list[str]
) -> None:
    """Within two seconds; a refusal for good is let be, as the service works without."""
    monkeypatch.setattr(os, "getpriority", lambda *_: 5)
    group: Any = Busy(refusals, number)
    clock = FakeClock()
    niceness.spread(clock, {"SYSTEMD_EXEC_PID": str(os.getpid())}, group)

    assert group.taken == taken
    assert clock.mono_ns() <= 2 * 10**9
