"""Asks a Kafka cluster for partitions and their earliest offsets, through librdkafka's admin client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from probes.retention_kafka.log_starts import Partition
from soak.core.errors import ProbeError

LOG = logging.getLogger("soak.probes.retention_kafka")


class KafkaOffsets:
    """One admin client; every request has a time limit."""

    def __init__(self, settings: Mapping[str, str], timeout_seconds: float) -> None:
        try:
            # Failures are raised; the client would also log twenty lines a second.
            self._admin = AdminClient({**settings, "log_level": "0"}, logger=LOG)
        except KafkaException as error:
            raise ProbeError(f"the Kafka client refuses its settings: {_reason(error)}") from error
        self._timeout_seconds = timeout_seconds

    def partitions(
        self, topics: Sequence[str], failed: Callable[[ProbeError], None]
    ) -> list[Partition]:
        """Return the partitions of these topics, in order; a missing topic is reported to `failed`.

        Raises:
            ProbeError: the cluster does not answer, or has none of the topics.
        """
        try:
            # All topics: a request for one by name may create it.
            listed = self._admin.list_topics(timeout=self._timeout_seconds).topics
        except KafkaException as error:
            self._admin.poll(0)  # drops the callbacks that came meanwhile, which would be kept
            raise ProbeError(f"cannot list topics: {_reason(error)}") from error
        found: list[Partition] = []
        errors: list[ProbeError] = []
        for topic in topics:
            refused = listed[topic].error if topic in listed else None
            if topic in listed and refused is None:
                found += [(topic, partition) for partition in sorted(listed[topic].partitions)]
            else:
                why = "unknown topic" if refused is None else refused.str()
                errors.append(ProbeError(f"cannot list topic {topic}: {why}"))
        _report(errors, failed, is_nothing_found=not found)
        return found

    def earliest(
        self, partitions: Sequence[Partition], failed: Callable[[ProbeError], None]
    ) -> dict[Partition, int]:
        """Return the earliest offsets that are answered in time; the others are reported to `failed`.

        Raises:
            ProbeError: none is answered.
        """
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the client's
        wanted = {TopicPartition(*one): earliest for one in partitions}
        try:
            futures = self._admin.list_offsets(wanted, request_timeout=self._timeout_seconds)
        except (KafkaException, ValueError) as error:
            raise ProbeError(f"cannot list offsets: {_reason(error)}") from error
        wait(futures.values(), self._timeout_seconds)
        of = {(asked.topic, asked.partition): future for asked, future in futures.items()}
        return offsets_of(of, failed)


def offsets_of(
    futures: Mapping[Partition, Future[ListOffsetsResultInfo]], failed: Callable[[ProbeError], None]
) -> dict[Partition, int]:
    """Return the offsets of the answers that have come; as `KafkaOffsets.earliest`."""
    found: dict[Partition, int] = {}
    errors: list[ProbeError] = []
    for (topic, partition), future in futures.items():
        try:
            found[topic, partition] = _offset(future)
        except ProbeError as error:
            place = f"{topic}, partition {partition}"
            errors.append(ProbeError(f"cannot list offsets of {place}: {error}"))
    _report(errors, failed, is_nothing_found=not found)
    return found


def _offset(future: Future[ListOffsetsResultInfo]) -> int:
    if not future.done():
        raise ProbeError("no answer in time")
    try:
        offset = int(future.result().offset)
    except (KafkaException, ValueError) as error:
        raise ProbeError(_reason(error)) from error
    if offset < 0:  # librdkafka 2.16 returns -1001 and no error if a leader has just died
        raise ProbeError("its leader does not answer")
    return offset


def _report(
    errors: Sequence[ProbeError], failed: Callable[[ProbeError], None], *, is_nothing_found: bool
) -> None:
    """Report the first error, or raise it if nothing was found."""
    if not errors:
        return
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    first = ProbeError(f"{errors[0]}{more}")
    if is_nothing_found:
        raise first from errors[0]
    failed(first)


def _reason(error: BaseException) -> str:
    """Return the client's message without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__
