"""How a Pulsar client is left: in order, or cut off when its broker does not answer."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pulsar

LOG = logging.getLogger("soak.brokers.pulsar")

_GRACE_SECONDS = 2.0


def leave(client: pulsar.Client) -> None:
    """Close a client and all that it made; one whose broker does not answer is cut off.

    To cut off at once would wait five seconds for the connection of a broker that does answer.
    """
    is_closed = threading.Event()

    def note(_result: Any) -> None:  # noqa: ANN401  # the client's type
        is_closed.set()

    client._client.close_async(note)  # noqa: SLF001  # what its wrapper has instead waits without end
    if not is_closed.wait(_GRACE_SECONDS):
        LOG.warning("client_cut_off")
        client.shutdown()
