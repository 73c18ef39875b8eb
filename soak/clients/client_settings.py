"""Checks of client settings: names that a client knows, and secrets that a plan only refers to."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from soak.core.errors import BrokerError, SettingError
from soak.core.plugins import close_to

_LIBRDKAFKA = Path(__file__).parent / "librdkafka.names"


@cache
def librdkafka_settings() -> frozenset[str]:
    """Return the names of librdkafka's settings, producer's and consumer's."""
    lines = _LIBRDKAFKA.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if not line.startswith("#"))


def refuse_unknown(
    where: str, names: Iterable[str], known: Iterable[str], *, who: str = "the client"
) -> None:
    """Raise `SettingError` about the first name that is not known, with the nearest that is.

    `where` is the key of the plug-in's section that holds the settings, such as `producer`.
    """
    everything = sorted(known)
    for name in names:
        if name not in everything:
            hint = close_to(name, everything)
            raise SettingError((where, name), f"{who} has no such setting{hint}")


# --- Secrets stand nowhere in a plan: it names where they are, and they are read when a client is made.
# `${env:NAME}` is an environment variable, `${file:PATH}` a file's text without line breaks at its end,
# `${credential:NAME}` a file of that name in the folder that systemd gives a service.

LIBRDKAFKA_SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
)
"""Settings that a plan may name only by reference."""

_REFERENCE = re.compile(r"\$\{(?P<where>env|file|credential):(?P<name>[^}]+)\}")
_PARAMETER = re.compile(r"token|key|pass|pwd|secret|auth|sig|credential", re.IGNORECASE)
SECRET_HELP = "write ${env:NAME}, ${file:PATH} or ${credential:NAME} instead"  # noqa: S105  # a hint, no secret


def is_secret_reference(text: str) -> bool:
    """True when the text says where a secret is, and is none itself."""
    return _REFERENCE.fullmatch(text) is not None


def refuse_literal_secrets(
    where: str, settings: Mapping[str, str], secret: Collection[str]
) -> None:
    """Raise `SettingError` when one of the secret settings holds anything but a reference.

    `where` is the key of the plug-in's section that holds the settings, such as `common`.
    """
    for name in secret:
        text = settings.get(name, "")
        if text and not _REFERENCE.fullmatch(text):
            raise SettingError((where, name), f"a secret must not stand in a plan: {SECRET_HELP}")
    for name, text in settings.items():
        if is_secret_in_url(name, text):
            raise SettingError((where, name), "holds a password, which must not stand in a plan")


def refuse_secrets_in_addresses(where: str, addresses: Iterable[str]) -> None:
    """Raise `ValueError` when an address names a user or a password, or in its query a secret."""
    for one in addresses:
        if is_secret_in_address(one):
            raise ValueError(f"{where} holds a password, which must not stand in a plan")


def is_secret_in_url(name: str, text: str) -> bool:
    """True when a setting is a URL, and no reference to one, that names a secret."""
    return name.endswith(".url") and not is_secret_reference(text) and is_secret_in_address(text)


def is_secret_in_address(address: str) -> bool:
    """True when an address names a user or a password, or in its query a secret."""
    return "@" in address or is_secret_in_query(address)


def is_secret_in_query(url: str) -> bool:
    """True when the query of a URL has a parameter that is named as a secret is."""
    _, _, query = url.partition("?")
    return any(_PARAMETER.search(one.partition("=")[0]) for one in re.split("[&;]", query))


def resolve_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with every reference replaced by what it names.

    Raises:
        BrokerError: there is no such variable or file; the message names the setting, never a secret.
    """
    return {name: _resolve(name, text) for name, text in settings.items()}


def _resolve(setting: str, text: str) -> str:
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return text
    where, name = match["where"], match["name"]
    if where == "env":
        if name not in os.environ:
            raise BrokerError(f"{setting}: there is no environment variable {name}")
        return os.environ[name]
    if where == "credential":
        folder = os.environ.get("CREDENTIALS_DIRECTORY")
        if folder is None:
            raise BrokerError(
                f"{setting}: systemd gave this process no credentials; only a service is given any, see "
                "docs/service.md"
            )
        path = Path(folder) / name
    else:
        path = Path(name)
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(f"{setting}: cannot read {path}: {error}") from error
