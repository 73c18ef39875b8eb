"""Which partition Pulsar gives a key: the Java client's default, which others take to meet it."""

from __future__ import annotations


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition by JavaStringHash of the key read as Latin-1."""
    value = 0
    for byte in key:
        value = (31 * value + byte) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partitions
