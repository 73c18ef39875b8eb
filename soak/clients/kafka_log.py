"""Log lines and errors of librdkafka: the cause of an error, and a log without floods.

While a broker is down a consumer's client logs that twenty times a second.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from operator import methodcaller
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from soak.core.errors import BrokerError, LoginRefusedError
from soak.core.ports import Clock
from soak.core.retry import Once
from soak.core.units import SECOND_NS

PERIOD_NS = 10 * SECOND_NS
MAX_KINDS = 100
_POLL_SECONDS = 0.1
ErrorCallback: TypeAlias = Callable[[KafkaError], None]
# Parts of a line that do not belong to its kind: partition, offset, duration, state, number of repeats.
_DETAILS = re.compile(r"\[\d+\]|\boffset -?\d+| \(at [^)]*| \(after .*")


def error_text(error: BaseException) -> str:
    """Return the text of a client's error, without its codes."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner) or type(error).__name__


# The binding decodes the name of a header without a look at the result, and Python looks at that of a method
# only where nothing calls it directly: called as `message.headers()` it ends the process.
_headers: Callable[[Any], list[tuple[str, bytes | None]] | None] = methodcaller("headers")


def headers_of_message(message: Any) -> list[tuple[str, bytes | None]]:  # noqa: ANN401  # the client ships no types
    """Return the headers of a message; none of them where the name of one is no text."""
    try:
        return _headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return []


def without_details(text: str) -> str:
    """Return what a client's lines of one kind have in common."""
    return _DETAILS.sub("", text)


class ClientLog:
    """The logger of clients, shared by threads: of each kind of line one in 10 s, with the number skipped."""

    def __init__(self, log: logging.Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged = Once(max_messages=MAX_KINDS, period_ns=PERIOD_NS)

    def log(self, level: int, form: str, *words: str) -> None:
        """Log a line as librdkafka's binding passes it: facility, client's name, text."""
        kind = words[0], without_details(words[-1])
        skipped = self._logged.repeats_if_new(kind, self._clock.mono_ns())
        if skipped is not None:
            self._log.log(level, "client_log line=%r skipped=%d", form % words, skipped)


class ErrorCause:
    """Why a client cannot connect; the error of its request itself is only "broker transport failure"."""

    def __init__(self) -> None:
        self._cause = ""
        self._is_final = False
        self._is_login_refused = False

    def note(self, error: KafkaError) -> None:
        """Keep the most specific error; for the client's `error_cb`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN or self._is_final:  # noqa: SLF001  # its public name
            return
        self._cause = error.str()
        self._is_login_refused = error.code() == KafkaError._AUTHENTICATION  # noqa: SLF001  # as above
        # That all brokers are down may follow from these, but is not their reason.
        self._is_final = error.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001  # as above

    def or_else(self, text: str) -> str:
        """Return the cause, or this text if none is known."""
        return self._cause or text

    def wait_for_login(
        self, admin: AdminClient, where: str, timeout_seconds: float, clock: Clock
    ) -> None:
        """Wait until the cluster at `where` answers, or until the timeout; less after a refusal.

        A refused login or certificate stays refused, so that only other brokers are waited for, for a second.

        Raises:
            BrokerError: no broker answers, and why; a `LoginRefusedError` where one refuses the login.
        """
        answer = admin.describe_cluster(request_timeout=timeout_seconds)
        now_ns = clock.mono_ns()
        deadline_ns = now_ns + round(timeout_seconds * SECOND_NS)
        while not answer.done() and now_ns < deadline_ns:
            is_new = not self._is_final
            admin.poll(_POLL_SECONDS)
            now_ns = clock.mono_ns()
            if is_new and self._is_final:
                deadline_ns = min(deadline_ns, now_ns + SECOND_NS)
        if not answer.done() or (self._cause and answer.exception() is not None):
            raise self._failure(where, "no answer")

    def metadata(
        self, admin: AdminClient, where: str, timeout_seconds: float, topic: str | None = None
    ) -> Any:  # noqa: ANN401  # the client ships no types
        """Return the metadata of the cluster at `where`, of one topic or of all.

        `admin` is a client with `note` as its `error_cb`.

        Raises:
            BrokerError: no broker answers, and why; a `LoginRefusedError` where one refuses the login.
        """
        try:
            return admin.list_topics(topic=topic, timeout=timeout_seconds)
        except KafkaException as error:
            admin.poll(0)  # runs the callbacks that are due
            raise self._failure(where, error_text(error)) from error

    def _failure(self, where: str, otherwise: str) -> BrokerError:
        reason = self.or_else(otherwise)
        if self._is_login_refused:
            return LoginRefusedError(f"the broker at {where} refused the login: {reason}")
        return BrokerError(f"no Kafka broker answered at {where}: {reason}")
