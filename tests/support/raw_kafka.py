"""A Kafka client that sends what ours cannot, and a broker in this process for tests that need no other.

Both are librdkafka's own, called past its Python binding, which would refuse a header whose name is no text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import confluent_kafka

_POINTER = ctypes.c_void_p
_PRODUCER = 0
_FLUSH_MS = 20_000
# Tags of the arguments of `rd_kafka_producev`, from rdkafka.h.
_END, _TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _HEADER = 0, 1, 3, 4, 5, 7, 9
_COPY = 2
_QUEUE_FULL = -184

Header = tuple[bytes, bytes | None]


@cache
def _library() -> ctypes.CDLL:
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("rd_kafka_conf_new", _POINTER, ()),
        ("rd_kafka_conf_set", ctypes.c_int, (_POINTER, *[ctypes.c_char_p] * 3, ctypes.c_size_t)),
        (
            "rd_kafka_new",
            _POINTER,
            (ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t),
        ),
        ("rd_kafka_handle_mock_cluster", _POINTER, (_POINTER,)),
        ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, (_POINTER,)),
        ("rd_kafka_flush", ctypes.c_int, (_POINTER, ctypes.c_int)),
        ("rd_kafka_destroy", None, (_POINTER,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class RawProducer:
    """Produces bytes as they are; call `flush` before the end."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        wanted = self._library.rd_kafka_conf_new()
        for name, value in {"log_level": "0", "linger.ms": "0", **settings}.items():
            code = self._library.rd_kafka_conf_set(
                wanted, name.encode(), value.encode(), error, len(error)
            )
            assert code == 0, error.value
        self._handle = self._library.rd_kafka_new(_PRODUCER, wanted, error, len(error))
        assert self._handle, error.value

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes = b"",
        partition: int = 0,
        headers: Sequence[Header] = (),
    ) -> bool:
        """Return whether there was room for the message."""
        arguments: list[object] = [
            *(_TOPIC, ctypes.c_char_p(topic.encode())),
            *(_PARTITION, ctypes.c_int32(partition)),
            *(_VALUE, ctypes.c_char_p(value), ctypes.c_size_t(len(value))),
            *(_KEY, ctypes.c_char_p(key), ctypes.c_size_t(len(key))),
            *(_FLAGS, ctypes.c_int(_COPY)),
        ]
        for name, text in headers:
            size = ctypes.c_ssize_t(len(text or b""))
            arguments += [_HEADER, ctypes.c_char_p(name), ctypes.c_char_p(text), size]
        code = self._library.rd_kafka_producev(_POINTER(self._handle), *arguments, _END)
        assert code in {0, _QUEUE_FULL}, f"not produced: error {code}"
        return bool(code == 0)

    def flush(self, timeout_ms: int = _FLUSH_MS) -> bool:
        """Return whether all messages have been sent, or given up."""
        return bool(self._library.rd_kafka_flush(self._handle, timeout_ms) == 0)

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._handle)

    def bootstrap_servers(self) -> str:
        """Return where the broker listens that this client brought along."""
        cluster = self._library.rd_kafka_handle_mock_cluster(self._handle)
        found: bytes = self._library.rd_kafka_mock_cluster_bootstraps(cluster)
        return found.decode()


@contextmanager
def in_process() -> Iterator[tuple[str, RawProducer]]:
    """Run a broker that keeps topics in memory; yields its address and a producer to it."""
    producer = RawProducer({"test.mock.num.brokers": "1"})
    try:
        yield producer.bootstrap_servers(), producer
    finally:
        producer.close()
