"""How a Pulsar client is left: in order, or cut off when its broker does not answer."""

from __future__ import annotations

import logging

import pulsar

LOG = logging.getLogger("soak.brokers.pulsar")


def leave(client: pulsar.Client) -> None:
    """Close a client and all that it made; one whose broker does not answer in time is cut off.

    The close that takes a callback is not used: its thread may come back to Python while the interpreter
    ends, which aborts the process. To cut off at once would wait five seconds for the connection of a
    broker that does answer.
    """
    try:
        client.close()
    except pulsar.PulsarException as error:
        LOG.warning("client_cut_off error=%s", error)
        client.shutdown()
