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
    """One admin client; every question has a time limit."""

    def __init__(self, settings: Mapping[str, str], timeout_seconds: float) -> None:
        try:
            # What fails is raised; the client's own lines beside it come twenty a second.
            self._admin = AdminClient({**settings, "log_level": "0"}, logger=LOG)
        except KafkaException as error:
            raise ProbeError(f"the Kafka client refuses its settings: {_reason(error)}") from error
        self._timeout_seconds = timeout_seconds

    def partitions(
        self, topics: Sequence[str], failed: Callable[[ProbeError], None]
    ) -> list[Partition]:
        """Return the partitions of these topics, in order; a topic that is not there is told to `failed`.

        Raises:
            ProbeError: the cluster does not answer, or none of the topics is there.
        """
        try:
            # all of them: a topic that is asked for by name may be created by that
            listed = self._admin.list_topics(timeout=self._timeout_seconds).topics
        except KafkaException as error:
            self._admin.poll(0)  # drops what it was told meanwhile: else all of it is kept
            raise ProbeError(f"cannot list topics: {_reason(error)}") from error
        found: list[Partition] = []
        troubles: list[ProbeError] = []
        for topic in topics:
            refused = listed[topic].error if topic in listed else None
            if topic in listed and refused is None:
                found += [(topic, partition) for partition in sorted(listed[topic].partitions)]
            else:
                why = "unknown topic" if refused is None else refused.str()
                troubles.append(ProbeError(f"cannot list topic {topic}: {why}"))
        _report(troubles, failed, is_nothing_found=not found)
        return found

    def earliest(
        self, partitions: Sequence[Partition], failed: Callable[[ProbeError], None]
    ) -> dict[Partition, int]:
        """Return the earliest offsets of those that tell it in time; why others do not is told to `failed`.

        Raises:
            ProbeError: none of them does.
        """
        wanted = {TopicPartition(*one): OffsetSpec.earliest() for one in partitions}  # type: ignore[no-untyped-call]  # the client's
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
    """Return the offsets of answers that are there; as `KafkaOffsets.earliest`."""
    found: dict[Partition, int] = {}
    troubles: list[ProbeError] = []
    for (topic, partition), future in futures.items():
        try:
            found[topic, partition] = _offset(future)
        except ProbeError as error:
            place = f"{topic}, partition {partition}"
            troubles.append(ProbeError(f"cannot list offsets of {place}: {error}"))
    _report(troubles, failed, is_nothing_found=not found)
    return found


def _offset(future: Future[ListOffsetsResultInfo]) -> int:
    if not future.done():
        raise ProbeError("no answer in time")
    try:
        offset = int(future.result().offset)
    except (KafkaException, ValueError) as error:
        raise ProbeError(_reason(error)) from error
    if offset < 0:  # librdkafka 2.16 gives -1001 and no error where a leader has just died
        raise ProbeError("its leader does not answer")
    return offset


def _report(
    troubles: Sequence[ProbeError], failed: Callable[[ProbeError], None], *, is_nothing_found: bool
) -> None:
    """Tell the first of what went wrong, or raise it where nothing went well."""
    if not troubles:
        return
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    first = ProbeError(f"{troubles[0]}{more}")
    if is_nothing_found:
        raise first from troubles[0]
    failed(first)


def _reason(error: BaseException) -> str:
    """Return the client's words without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__
