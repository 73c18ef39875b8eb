"""Log lines and errors of librdkafka: the cause of an error, and a log without floods."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from soak.core.errors import BrokerError
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS


def error_text(error: BaseException) -> str:
    """Return the client's words without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__


# --- What librdkafka says unasked: kept for an error to name its cause, and logged without a flood.
# While a broker is down a consumer's client says so twenty times a second.

PERIOD_NS = 10 * SECOND_NS
MAX_KINDS = 100
ErrorCallback: TypeAlias = Callable[[KafkaError], None]
# Of the line, not of its kind: which partition, at which offset, how long it took, in which state, how often.
_DETAILS = re.compile(r"\[\d+\]|\boffset -?\d+| \(at [^)]*| \(after .*")


class ClientLog:
    """The logger of clients: of each kind of line one in 10 s, with how many were left out before it.

    Clients on several threads share it, and one may clear what another is about to look up.
    """

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._reported = Once(max_messages=MAX_KINDS, period_ns=PERIOD_NS)

    def log(self, level: int, form: str, *words: str) -> None:
        """Take a line as librdkafka's binding gives it: facility, client's name, text."""
        kind = words[0], _DETAILS.sub("", words[-1])
        left_out = self._reported.repeats_if_new(kind, self._clock.mono_ns())
        if left_out is not None:
            self._log.log(level, "client_said line=%r left_out=%d", form % words, left_out)


class ErrorCause:
    """Why a client reaches nobody; its question itself only ends with "broker transport failure"."""

    def __init__(self) -> None:
        self._said = ""
        self._is_final = False

    def note(self, error: KafkaError) -> None:
        """Keep what tells most; the client's `error_cb`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN or self._is_final:  # noqa: SLF001  # its public name
            return
        self._said = error.str()
        # That nobody answers may follow from it, but not be its reason.
        self._is_final = error.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001  # as above

    def or_else(self, words: str) -> str:
        """Return what was said, or else these words."""
        return self._said or words

    def metadata(
        self, admin: AdminClient, where: str, timeout_seconds: float, topic: str | None = None
    ) -> Any:  # noqa: ANN401  # the client ships no types
        """Return what the cluster at `where` says of its brokers and topics, asked by a client that tells us.

        Of all topics, unless one is named.

        Raises:
            BrokerError: no broker answers, and why.
        """
        try:
            return admin.list_topics(topic=topic, timeout=timeout_seconds)
        except KafkaException as error:
            admin.poll(0)  # what it was told meanwhile
            why = self.or_else(error_text(error))
            raise BrokerError(f"no Kafka broker answered at {where}: {why}") from error
