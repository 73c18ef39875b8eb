"""Which partition a Kafka client gives a key: its partitioner, so that our choice is the client's."""

from __future__ import annotations

import zlib

from soak.core.errors import SettingError

DEFAULT = "consistent_random"
"""librdkafka's own; the Java client's is murmur2_random."""

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_32 = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int, partitioner: str) -> int:
    """Return the partition of a key under a partitioner of librdkafka's.

    Raises:
        SettingError: a partitioner that does not look at the key, or an unknown one.
    """
    if partitioner in {"consistent", "consistent_random"}:
        return zlib.crc32(key) % partitions
    if partitioner in {"murmur2", "murmur2_random"}:
        return (murmur2(key) & 0x7FFFFFFF) % partitions
    if partitioner in {"fnv1a", "fnv1a_random"}:
        return abs(_signed(fnv1a(key))) % partitions
    raise SettingError(
        ("producer", "partitioner"),
        f"{partitioner!r} gives a key no partition of its own; "
        "take consistent, murmur2 or fnv1a, each also with _random",
    )


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash as the Java client makes it (MurmurHash2, its own seed), unsigned."""
    value = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _32
        word ^= word >> 24
        value = (value * _FACTOR & _32) ^ (word * _FACTOR & _32)
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _32
    value = (value ^ value >> 13) * _FACTOR & _32
    return value ^ value >> 15


def fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash, unsigned."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & _32
    return value


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
