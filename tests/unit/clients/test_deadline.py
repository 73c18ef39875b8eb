"""The deadline of a conversation with a server."""

from __future__ import annotations

import _thread
import threading

import pytest

from soak.clients.deadline import Deadline


def test_a_thread_that_cannot_start_does_not_block_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message is sent without a deadline."""
    for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
        monkeypatch.setattr(module, name, lambda *_: 0)

    with Deadline(60.0) as limit:
        limit.covers(None)

    assert not limit.is_over
