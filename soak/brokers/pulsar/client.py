"""The `broker: pulsar:` section of a plan, and what its clients share: settings, log lines, closing."""

from __future__ import annotations

import inspect
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import _pulsar
import pulsar
from pydantic.dataclasses import dataclass

from soak.brokers.pulsar.partition_log import MAX_BATCH_MESSAGES
from soak.clients import client_settings
from soak.clients.pulsar_admin import ADMIN_HOSTS, Admin, connect_admin, host_of
from soak.core.errors import BrokerError, SettingError, raise_settings, wrong_settings
from soak.core.plan.config import STRICT, Settings
from soak.core.ports import Clock, ReceiveError
from soak.core.units import SECOND_NS, Duration

LOG = logging.getLogger("soak.brokers.pulsar")
CLIENT_LOG = logging.getLogger("soak.brokers.pulsar.client")

SECRETS = ("token",)
"""Settings that a plan may name only by reference."""
LINES_PER_SECOND = 10
"""While a broker is down the client logs several lines for each partition and attempt."""

MAX_ERROR_KINDS = 100

_BATCHES = {"batching_enabled": "true", "batching_max_publish_delay_ms": "1"}
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
    "block_if_queue_full": "a full queue must not delay the schedule",
    "initial_position": "the run decides where consumers start",
    "lazy_start_partitioned_producers": "each partition has a producer of its own",
    "log_conf_file_path": "the client's lines go to soakd's log",
    "message_routing_mode": "each partition has a producer of its own",
    "regex_subscription_mode": "topics are subscribed by name",
    "start_message_id_inclusive": "the run decides where consumers start",
    "use_tls": "the scheme of service_url decides: pulsar+ssl://",
}
_ADMIN_ONLY = frozenset({ADMIN_HOSTS, client_settings.UNENCRYPTED})
_ORDERED = ("Exclusive", "Failover")
_LOG_PREFIX = re.compile(r"^\S+ \S+ (?P<level>[A-Z]+) +\[\d+\] \S+ +\| ")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Config:
    service_url: str = ""  # pulsar:// or pulsar+ssl://; empty: the lab's broker
    admin_url: str = ""  # http:// or https://
    bookie_urls: str = ""  # http://host:8000,...: each bookie's own page, for its settings
    namespace: str = "public/default"  # of topics without a namespace in their name
    timeout: Duration = 10 * SECOND_NS  # of every request that carries no message
    client: Settings = field(default_factory=dict)  # authentication: token needs token, too
    producer: Settings = field(default_factory=dict)  # over those that make batches
    consumer: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_chunking = self.producer.get("chunking_enabled") == "true"  # excludes batches
        object.__setattr__(self, "producer", {**({} if is_chunking else _BATCHES), **self.producer})
        if self.timeout <= 0:
            raise ValueError("timeout must be above 0s")
        for name, addresses in self.addresses.items():
            client_settings.refuse_secrets_in_addresses(name, addresses.split(","))

    @property
    def addresses(self) -> dict[str, str]:
        """Return where the cluster is, under the names that other sections of a plan use."""
        return {
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "bookie_urls": self.bookie_urls,
        }

    @property
    def timeout_seconds(self) -> float:
        return self.timeout / SECOND_NS

    def service_urls(self) -> list[str]:
        """Return the address of each broker in `service_url`, which names the scheme once."""
        scheme, mark, hosts = self.service_url.rpartition("://")
        return [f"{scheme}{mark}{host}" for host in hosts.split(",")]

    def full_name(self, topic: str) -> str:
        """Return the name of a topic with its namespace."""
        return topic if "://" in topic else f"persistent://{self.namespace}/{topic}"

    def token(self) -> str:
        """Return the token that the plan refers to, "" for none.

        Raises:
            BrokerError: it cannot be read, or is no token.
        """
        token = client_settings.resolve_secrets(self.client).get("token", "").strip()
        if (
            len(token.split()) > 1
        ):  # no header can carry it, and an error of the client would show it
            raise BrokerError("token: the value has a space or a line break within")
        return token

    def connection_settings(self) -> dict[str, Any]:
        """Return the client's settings without those of authentication.

        Raises:
            SettingError: unknown names, wrong values, or half of the authentication.
        """
        settings = {name: text for name, text in self.client.items() if name not in _ADMIN_ONLY}
        kind, token = settings.pop("authentication", ""), settings.pop("token", "")
        faults = []
        if kind not in {"", "token"}:
            faults.append(
                SettingError(("client", "authentication"), f"must be token, not {kind!r}")
            )
        elif bool(kind) != bool(token):
            place = ("client", "authentication" if kind else "token")
            faults.append(
                SettingError(place, "authentication: token and token: ${...} go together")
            )
        if faults:
            faults += wrong_settings(lambda: convert_settings("client", settings))
        raise_settings(faults)
        return convert_settings("client", settings)

    def admin(self) -> Admin:
        """Return the admin interface, with token and TLS."""
        return self._page(self.admin_url, self.token())

    def bookie_page(self, url: str) -> Admin:
        """Return the pages of a bookie: they use the cluster's TLS, but no token."""
        return self._page(url, "")

    def _page(self, url: str, token: str) -> Admin:
        own = {name: text for name, text in self.client.items() if name in _ADMIN_ONLY}
        hosts = map(host_of, self.service_urls())
        own[ADMIN_HOSTS] = ",".join([own.get(ADMIN_HOSTS, ""), *filter(None, hosts)])
        settings = {**self.connection_settings(), **own}
        return connect_admin(url, self.timeout_seconds, token, settings)


def convert_settings(section: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return settings as the client's function for `section` (client, producer, consumer) accepts them.

    Raises:
        SettingError: unknown names, settings that soakd fixes, or values of the wrong kind.
    """
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(_FUNCTIONS[section]).parameters.items()
        if _is_plannable(name, parameter.default)
    }
    faults = [
        SettingError((section, name), f"is fixed by soakd: {_FIXED_SETTINGS[name]}")
        for name in settings
        if name in _FIXED_SETTINGS
    ]
    faults += wrong_settings(lambda: client_settings.refuse_unknown(section, settings, defaults))
    found: dict[str, Any] = {}
    for name, text in settings.items():
        try:
            if name in defaults:
                found[name] = _value(section, name, text, defaults[name])
        except SettingError as error:
            faults.append(error)
    if found.get("batching_max_messages", 0) > MAX_BATCH_MESSAGES:
        place = (section, "batching_max_messages")
        faults.append(SettingError(place, f"must be at most {MAX_BATCH_MESSAGES}"))
    if settings.get("consumer_type", _ORDERED[0]) not in _ORDERED:
        why = f"must be {' or '.join(_ORDERED)}: without order a lost message looks like a late one"
        faults.append(SettingError((section, "consumer_type"), why))
    raise_settings(faults)
    return found


def _is_plannable(name: str, default: object) -> bool:
    """Return whether a plan can hold a setting; it cannot hold a schema, a callback or a policy."""
    is_named = name in _TEXTS or name in _NUMBERS
    is_simple = isinstance(default, bool | int) or hasattr(type(default), "__members__")
    return name not in _FIXED_SETTINGS and (is_named or is_simple)


def _value(section: str, name: str, text: str, default: object) -> object:
    if name in _TEXTS:
        return text
    choices: Mapping[str, object] = getattr(type(default), "__members__", {})
    if isinstance(default, bool):
        choices = {"true": True, "false": False}
    if choices:
        if text not in choices:
            options = ", ".join(choices)
            raise SettingError((section, name), f"must be one of {options}, not {text!r}")
        return choices[text]
    try:
        return int(text)
    except ValueError as error:
        raise SettingError((section, name), f"must be a whole number, not {text!r}") from error


def close_client(client: pulsar.Client) -> None:
    """Close a client and its producers and consumers, or cut it off if the broker does not answer in time.

    The close that takes a callback is not used: its thread may return to Python while the interpreter
    ends, which aborts the process. To cut off at once would wait five seconds for the connection of a
    broker that does answer.
    """
    try:
        client.close()
    except pulsar.PulsarException as error:
        LOG.warning("client_cut_off error=%s", error)
        client.shutdown()


_PLACE = re.compile(r"\[[^\[\]]*+\] |\(refCnt: \d+\)")
_BROKER = re.compile(r"-> (?:pulsar(?:\+ssl)?://)?(?P<broker>[^\s\]]+:\d+)\]")
_PARTITION = re.compile(
    r"persistent://[^/\s]+/[^/\s]+/(?P<topic>[^/\s,\]]+)-partition-(?P<number>\d+)"
)
_RESULTS = {name.lower(): name for name in _pulsar.Result.__members__}
_WORD = re.compile(r"[A-Za-z]+")
_MAX_REASON = 500  # characters: the broker may say anything


def parse_error(text: str) -> ReceiveError:
    """Return what a line of the client at level ERROR, without its prefix, says and names."""
    broker, partition = _BROKER.search(text), _PARTITION.search(text)
    reason = _PLACE.sub("", text).strip()[:_MAX_REASON]
    codes = [_RESULTS[word] for word in map(str.lower, _WORD.findall(reason)) if word in _RESULTS]
    return ReceiveError(
        reason=reason,
        code=codes[-1] if codes else "",
        broker="" if broker is None else broker["broker"],
        partition="" if partition is None else f"{partition['topic']}-{partition['number']}",
    )


class ClientLogPipe:
    """Passes the client's log lines to ours: a pipe, and a thread that reads it while the process lives.

    Given a Python logger, the client would build and pass every debug line, several a message, whatever the
    logger's level: 45 us a message at 5,000/s instead of 26, and 214 instead of 68 at 500/s. Its file
    logger knows its level, and accepts a pipe as its file.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = clock.mono_ns()
        self._count = 0
        self._errors: Counter[ReceiveError] = Counter()
        self._lock = threading.Lock()

    def open(self) -> pulsar.FileLogger:
        """Return the logger for clients."""
        read_end, write_end = os.pipe()
        # The client's loggers outlive its clients, so neither end is ever closed.
        threading.Thread(
            target=self._follow, args=(read_end,), name="pulsar-lines", daemon=True
        ).start()
        return pulsar.FileLogger(pulsar.LoggerLevel.Warn, f"/proc/self/fd/{write_end}")

    def take_errors(self) -> Mapping[ReceiveError, int]:
        """Return the errors in the lines since the last call, and how often: the client has no callback."""
        with self._lock:
            found, self._errors = self._errors, Counter()
        return found

    def log_line(self, line: str) -> None:
        """Log one line, unless there were too many within this second; count it if it is an error."""
        prefix = _LOG_PREFIX.match(line)
        if prefix is not None and prefix["level"] == "ERROR":
            self._note_error(line[prefix.end() :])
        now_ns = self._clock.mono_ns()
        if now_ns - self._since_ns >= SECOND_NS:
            if self._count > LINES_PER_SECOND:
                CLIENT_LOG.warning("client_lines_skipped count=%d", self._count - LINES_PER_SECOND)
            self._since_ns, self._count = now_ns, 0
        self._count += 1
        if self._count <= LINES_PER_SECOND:
            CLIENT_LOG.warning("client_log line=%s", _LOG_PREFIX.sub("", line))

    def _note_error(self, text: str) -> None:
        error = parse_error(text)
        with self._lock:
            if error in self._errors or len(self._errors) < MAX_ERROR_KINDS:
                self._errors[error] += 1

    def _follow(self, read_end: int) -> None:
        with os.fdopen(read_end, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.log_line(line.rstrip())
