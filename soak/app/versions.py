"""Versions of soakd and of what it works with, for a report of a fault."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from soak.core.errors import NotAvailableError
from soak.service.files import user_cache
from soak.service.java import spark_java_home, version_of

_PACKAGES = ("confluent-kafka", "pulsar-client", "pyspark", "pyarrow", "numpy")


def versions() -> Iterator[tuple[str, str]]:
    """Give name and version of soakd, Python, the Kafka and Pulsar clients, Spark and its Java."""
    yield "soakd", _installed("soakd")
    yield "Python", platform.python_version()
    for package in _PACKAGES:
        yield package, _installed(package)
    try:
        import confluent_kafka

        yield "librdkafka", confluent_kafka.libversion()[0]
    except ImportError as error:
        yield "librdkafka", f"not usable: {error}"
    try:
        home = spark_java_home(user_cache())
        yield "Java", f"{version_of(home) or 'of unknown version'} ({home})"
    except NotAvailableError as error:
        yield "Java", f"not usable: {error}"


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
