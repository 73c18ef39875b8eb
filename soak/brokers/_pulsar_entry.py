"""How large messages are in a Pulsar ledger: entries, each a message or a batch, as the client fills them.

Bytes beside the payload, measured with the C++ client 3.13: 36 an entry, 10 more a message of a batch.
The estimate of how many share a batch takes the client to wait for its delay and no longer.
"""

from __future__ import annotations

from collections.abc import Mapping

from soak.core.forecast import Stored
from soak.core.plan_load import Load

ENTRY_BYTES = 36
IN_BATCH_BYTES = 10
STICKY_SECONDS = 0.01  # without keys a producer stays with a partition for so long
_DEFAULTS = {
    "batching_enabled": "false",
    "batching_max_messages": "1000",
    "batching_max_allowed_size_in_bytes": str(128 * 2**10),
    "batching_max_publish_delay_ms": "10",
    "compression_type": "NONE",
}


def stored(load: Load, partitions: int, producer: Mapping[str, str]) -> Stored:
    """Return what messages of a load take, and how many make an entry."""
    settings = {**_DEFAULTS, **producer}
    together = in_entry(load, partitions, settings)
    size = load.mean_size + ENTRY_BYTES / together
    if settings["batching_enabled"] == "true":
        size += IN_BATCH_BYTES
    if settings["compression_type"] != _DEFAULTS["compression_type"]:
        size -= load.compressible * load.mean_size
    return Stored(size, together)


def in_entry(load: Load, partitions: int, settings: Mapping[str, str]) -> float:
    """Return how many messages share an entry, at least 1."""
    if settings["batching_enabled"] != "true":
        return 1.0
    rate = float(load.rate) / (load.producers * load.clients_per_producer)
    delay = float(settings["batching_max_publish_delay_ms"]) * 1e-3
    if load.keys.kind == "none":
        delay = min(delay, STICKY_SECONDS)
    else:
        rate /= partitions
    most = min(
        float(settings["batching_max_messages"]),
        float(settings["batching_max_allowed_size_in_bytes"]) / load.mean_size,
    )
    return max(1.0, min(1.0 + rate * delay, most))
