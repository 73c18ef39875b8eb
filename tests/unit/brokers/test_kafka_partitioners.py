"""Partitioners of the Kafka clients."""

from __future__ import annotations

import zlib

import pytest

from soak.brokers.kafka.producer import fnv1a, murmur2, partition_of
from soak.core.errors import SettingError


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(key: bytes, hashed: int) -> None:
    """Values of the Java client's own test, as signed 32-bit numbers."""
    assert murmur2(key) == hashed % 2**32


def test_each_partitioner_is_that_of_the_client() -> None:
    assert fnv1a(b"foobar") == 0xBF9CF968
    assert partition_of(b"foobar", 7, "murmur2_random") == (-790332482 & 0x7FFFFFFF) % 7
    assert partition_of(b"foobar", 7, "consistent_random") == zlib.crc32(b"foobar") % 7
    with pytest.raises(SettingError, match="gives a key no partition"):
        partition_of(b"foobar", 7, "random")
