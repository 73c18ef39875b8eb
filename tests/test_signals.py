from __future__ import annotations

import signal
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
