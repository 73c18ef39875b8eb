"""Signals: an orderly exit, and the event that every wait of a daemon checks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from soak.service.signals import exit_on_sigterm


def test_a_temporary_folder_is_removed_after_sigterm() -> None:
    """By default the signal ends the process at once, and its files stay."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        exit_on_sigterm()
        with pytest.raises(SystemExit, match="143"), TemporaryDirectory() as folder:
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert not Path(folder).exists()


_SIGNALLED_IN_A_WAIT = """
import signal
from soak.service.signals import stop_event
stop = stop_event()
with stop._cond:  # as the main thread holds it for a moment in each `wait`
    signal.raise_signal(signal.SIGTERM)
print(stop.wait(20))
"""


@pytest.mark.long
def test_a_signal_during_a_wait_ends_it() -> None:
    """Whatever lock the main thread holds, the handler returns and the event is set."""
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED_IN_A_WAIT],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("True\n", "")
