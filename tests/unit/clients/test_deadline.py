"""The limit over a whole conversation with a server."""

from __future__ import annotations

import _thread
import threading

import pytest

from soak.clients.deadline import Deadline


def test_a_thread_that_finds_no_memory_holds_no_message_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started and never says so: the message goes out without a limit, and the daemon goes on."""
    for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
        monkeypatch.setattr(module, name, lambda *_: 0)

    with Deadline(60.0) as limit:
        limit.covers(None)

    assert not limit.is_over
