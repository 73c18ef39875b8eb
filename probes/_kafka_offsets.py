"""Asks a Kafka cluster where the logs of partitions begin, through librdkafka's admin client."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stubs

from probes._log_starts import Partition
from soak.core.errors import ProbeError

LOG = logging.getLogger("soak.probes.retention_kafka")


class KafkaOffsets:
    """One admin client; every question has a time limit."""

    def __init__(self, settings: Mapping[str, str], timeout_seconds: float) -> None:
        try:
            # What fails is raised; the client's own lines beside it come twenty a second.
            self._admin = AdminClient({**settings, "log_level": "0"}, logger=LOG)
        except KafkaException as error:
            raise ProbeError(f"the Kafka client refuses its settings: {_said(error)}") from error
        self._timeout_seconds = timeout_seconds

    def partitions(self, topics: Sequence[str]) -> list[Partition]:
        """Return the partitions of these topics, in order.

        Raises:
            ProbeError: the cluster does not answer, or a topic is not there.
        """
        try:
            # all of them: a topic that is asked for by name may be created by that
            listed = self._admin.list_topics(timeout=self._timeout_seconds).topics
        except KafkaException as error:
            self._admin.poll(0)  # drops what it was told meanwhile: else all of it is kept
            raise ProbeError(f"cannot list topics: {_said(error)}") from error
        found: list[Partition] = []
        for topic in topics:
            if topic not in listed:
                raise ProbeError(f"cannot list topic {topic}: unknown topic")
            refused = listed[topic].error
            if refused is not None:
                raise ProbeError(f"cannot list topic {topic}: {refused.str()}")
            found += [(topic, partition) for partition in sorted(listed[topic].partitions)]
        return found

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the earliest offset of all of them.

        Raises:
            ProbeError: one is not known in time.
        """
        wanted = {TopicPartition(*one): OffsetSpec.earliest() for one in partitions}  # type: ignore[no-untyped-call]  # the client's
        try:
            futures = self._admin.list_offsets(wanted, request_timeout=self._timeout_seconds)
            return {
                (asked.topic, asked.partition): int(future.result(self._timeout_seconds).offset)
                for asked, future in futures.items()
            }
        except TimeoutError as error:
            limit = f"no answer within {self._timeout_seconds:g} s"
            raise ProbeError(f"cannot list offsets: {limit}") from error
        except (KafkaException, ValueError) as error:
            raise ProbeError(f"cannot list offsets: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """Return the client's words without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__
