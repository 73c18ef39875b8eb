"""How large messages are in a Kafka log: the record batch, format 2 (KIP-98), as a producer fills it.

The estimate of how many share a batch takes the client to wait for `linger.ms` and no longer: a broker
that answers slowly gets larger batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from soak.core.forecast import Stored
from soak.core.plan_load import Load

HEADER_BYTES = 61  # of a batch
STICKY_SECONDS = 0.01  # without keys a producer stays with a partition for so long
_KEY_BYTES = 8  # `key-` and a number
_OTHER_FIELDS = 4  # attributes, two deltas, number of headers
_DEFAULTS = {"linger.ms": "5", "batch.size": "1000000", "batch.num.messages": "10000"}
_ALSO = {
    "linger.ms": "queue.buffering.max.ms",
    "compression.type": "compression.codec",
}
_PLAIN = ("", "none", "uncompressed")


def stored(
    load: Load, partitions: int, producer: Mapping[str, str], compression: str = ""
) -> Stored:
    """Return what messages of a load take; `compression` is by the cluster, "" where the producer's stays."""
    size = load.mean_size
    together = in_batch(load, partitions, producer)
    body = record_bytes(round(size), 0 if load.keys.kind == "none" else _KEY_BYTES)
    whole = body + HEADER_BYTES / together
    if (compression or _setting(producer, "compression.type")) not in _PLAIN:
        whole -= load.compressible * size
    return Stored(whole, together)


def in_batch(load: Load, partitions: int, producer: Mapping[str, str]) -> float:
    """Return how many messages share a batch, at least 1."""
    rate = float(load.rate) / (load.producers * load.clients_per_producer)
    if load.keys.kind != "none":
        rate /= partitions
    linger = float(_setting(producer, "linger.ms")) * 1e-3
    if load.keys.kind == "none":
        linger = min(linger, STICKY_SECONDS)
    most = min(
        float(_setting(producer, "batch.num.messages")),
        float(_setting(producer, "batch.size")) / load.mean_size,
    )
    return max(1.0, min(1.0 + rate * linger, most))


def record_bytes(value_bytes: int, key_bytes: int = 0) -> int:
    """Return what one record takes in a batch without its share of the header."""
    key = _varint_bytes(key_bytes) + key_bytes if key_bytes else 1
    body = _OTHER_FIELDS + key + _varint_bytes(value_bytes) + value_bytes
    return _varint_bytes(body) + body


def _varint_bytes(value: int) -> int:
    """Return the length of a whole number in zigzag coding, seven bits a byte."""
    return max(1, -(-(2 * value).bit_length() // 7))


def _setting(producer: Mapping[str, str], name: str) -> str:
    """Return a setting under either of its names, or the client's default."""
    return producer.get(name) or producer.get(_ALSO.get(name, "")) or _DEFAULTS.get(name, "")
