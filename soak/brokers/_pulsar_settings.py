"""The Pulsar client's settings by their real names, taken from the signatures of its own functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pulsar

from soak.brokers._pulsar_offsets import MOST_IN_A_BATCH
from soak.clients import known
from soak.core.errors import SettingError

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
_OURS = {
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


def converted(where: str, settings: Mapping[str, str]) -> dict[str, Any]:
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
        if name in _OURS:
            raise SettingError((where, name), f"soakd itself decides this: {_OURS[name]}")
    known.refuse_unknown(where, settings, defaults)
    found = {name: _value(where, name, text, defaults[name]) for name, text in settings.items()}
    if int(settings.get("batching_max_messages", "0")) > MOST_IN_A_BATCH:
        raise SettingError((where, "batching_max_messages"), f"must be at most {MOST_IN_A_BATCH}")
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
    return name not in _OURS and (is_named or is_simple)


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
