"""Settings, log lines and closing of the Pulsar client."""

from __future__ import annotations

import inspect
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pulsar

from soak.brokers.pulsar.partition_log import MAX_BATCH_MESSAGES
from soak.clients.client_settings import refuse_unknown
from soak.core.errors import SettingError
from soak.core.ports import Clock
from soak.core.units import SECOND_NS

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "client": pulsar.Client.__init__,
    "producer": pulsar.Client.create_producer,
    "consumer": pulsar.Client.subscribe,
}
_TEXTS = frozenset(
    {
        "consumer_name",
        "listener_name",
        "producer_name",
        "tls_certificate_file_path",
        "tls_private_key_file_path",
        "tls_trust_certs_file_path",
    }
)
_NUMBERS = frozenset({"initial_sequence_id", "unacked_messages_timeout_ms"})
_FIXED_SETTINGS = {
    "block_if_queue_full": "a full queue must not hold the schedule up",
    "initial_position": "the run says where reading begins",
    "lazy_start_partitioned_producers": "each partition has a producer of its own",
    "log_conf_file_path": "the client's lines go to soakd's log",
    "message_routing_mode": "each partition has a producer of its own",
    "regex_subscription_mode": "topics are named one by one",
    "start_message_id_inclusive": "the run says where reading begins",
    "use_tls": "the service URL says so: pulsar+ssl://",
}
_ORDERED = ("Exclusive", "Failover")


def client_settings(where: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return settings as the client's function for `where` (client, producer, consumer) takes them.

    Raises:
        SettingError: an unknown name, one that soakd itself decides, or a value of the wrong kind.
    """
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(_FUNCTIONS[where]).parameters.items()
        if _has_text(name, parameter.default)
    }
    for name in settings:
        if name in _FIXED_SETTINGS:
            raise SettingError((where, name), f"soakd itself decides this: {_FIXED_SETTINGS[name]}")
    refuse_unknown(where, settings, defaults)
    found = {name: _value(where, name, text, defaults[name]) for name, text in settings.items()}
    if int(settings.get("batching_max_messages", "0")) > MAX_BATCH_MESSAGES:
        raise SettingError(
            (where, "batching_max_messages"), f"must be at most {MAX_BATCH_MESSAGES}"
        )
    if settings.get("consumer_type", _ORDERED[0]) not in _ORDERED:
        raise SettingError(
            (where, "consumer_type"),
            f"must be {' or '.join(_ORDERED)}: without an order nobody can tell a message that was "
            "lost from one that is still to come",
        )
    return found


def _has_text(name: str, default: object) -> bool:
    """Say whether a setting can be written in a plan: not so a schema, a callback or a policy."""
    is_named = name in _TEXTS or name in _NUMBERS
    is_simple = isinstance(default, bool | int) or hasattr(type(default), "__members__")
    return name not in _FIXED_SETTINGS and (is_named or is_simple)


def _value(where: str, name: str, text: str, default: object) -> object:
    if name in _TEXTS:
        return text
    choices: Mapping[str, object] = getattr(type(default), "__members__", {})
    if isinstance(default, bool):
        choices = {"true": True, "false": False}
    if choices:
        if text not in choices:
            raise SettingError((where, name), f"must be one of {', '.join(choices)}, not {text!r}")
        return choices[text]
    try:
        return int(text)
    except ValueError as error:
        raise SettingError((where, name), f"must be a whole number, not {text!r}") from error


# --- Brings the Pulsar client's own lines to our log, without the price of the way that it offers.
# Given a Python logger, the client builds and hands over every debug line, several a message, whatever the
# logger's level: 45 us a message at 5,000/s instead of 26, and 214 instead of 68 at 500/s. Its file logger
# knows its level, and takes a pipe for a file.

CLIENT_LOG = logging.getLogger("soak.brokers.pulsar.broker.client")

LINES_PER_SECOND = 10
"""A lost broker is worth several lines a partition and try; what comes beyond these is counted."""

_PREFIX = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+) +\[\d+\] \S+ +\| ")


class ClientLogPipe:
    """A pipe and the thread that empties it, for as long as the process lives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = clock.mono_ns()
        self._count = 0

    def open(self) -> pulsar.FileLogger:
        """Return what the client is to be given as its logger."""
        read_end, write_end = os.pipe()
        # The client's loggers outlive its clients, so neither end is ever closed.
        threading.Thread(
            target=self._follow, args=(read_end,), name="pulsar-lines", daemon=True
        ).start()
        return pulsar.FileLogger(pulsar.LoggerLevel.Warn, f"/proc/self/fd/{write_end}")

    def take(self, line: str) -> None:
        """Log one line, unless there were many within this second."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._since_ns >= SECOND_NS:
            if self._count > LINES_PER_SECOND:
                CLIENT_LOG.warning("client_lines_left_out count=%d", self._count - LINES_PER_SECOND)
            self._since_ns, self._count = now_ns, 0
        self._count += 1
        if self._count <= LINES_PER_SECOND:
            CLIENT_LOG.warning("client_said line=%s", _PREFIX.sub("", line))

    def _follow(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.take(line.rstrip())


# --- How a Pulsar client is left: in order, or cut off when its broker does not answer.

LOG = logging.getLogger("soak.brokers.pulsar.broker")


def close_client(client: pulsar.Client) -> None:
    """Close a client and all that it made; one whose broker does not answer in time is cut off.

    The close that takes a callback is not used: its thread may come back to Python while the interpreter
    ends, which aborts the process. To cut off at once would wait five seconds for the connection of a
    broker that does answer.
    """
    try:
        client.close()
    except pulsar.PulsarException as error:
        LOG.warning("client_cut_off error=%s", error)
        client.shutdown()
