from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from soak.service.signals import exit_on_sigterm


def test_a_folder_for_a_while_is_gone_after_sigterm() -> None:
    """By default the signal ends the process at once, and what it wrote stays."""
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


def test_a_signal_in_the_middle_of_a_wait_ends_it() -> None:
    """Whatever the main thread holds just then, the handler returns and the event is set."""
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED_IN_A_WAIT],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("True\n", "")
