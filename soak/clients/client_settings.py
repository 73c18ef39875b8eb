"""Checks of client settings: names that a client knows, and secrets that a plan only refers to.

`${env:NAME}` is an environment variable, `${file:PATH}` the text of a file without line breaks at its end,
`${credential:NAME}` a file of that name in the folder that systemd gives a service.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from soak.core.errors import BrokerError, SettingError, raise_settings, wrong_settings
from soak.core.plan.plugins import close_to

_LIBRDKAFKA = Path(__file__).parent / "librdkafka.names"

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

_LOADS_CODE = re.compile(
    r"librar|plugin|engine|provider|interceptor|\.cmd$|_cb$|^opaque$|^msg_order_cmp$|^ssl_|^offset\.store\."
)
"""Names of settings that load a library, run a command, write a file, or hold a pointer of a program."""
_TOKEN_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105  # the name of a setting

_REFERENCE = re.compile(r"\$\{(?P<where>env|file|credential):(?P<name>[^}]+)\}")
_PARAMETER = re.compile(r"token|key|pass|pwd|secret|auth|sig|credential", re.IGNORECASE)
UNENCRYPTED = "send_secrets_unencrypted"
"""The setting of a client that lets it send its token or password over plain http to another machine."""
SECRET_HELP = "write ${env:NAME}, ${file:PATH} or ${credential:NAME} instead"  # noqa: S105  # a hint, no secret


@cache
def librdkafka_settings() -> frozenset[str]:
    """Return the names of librdkafka's settings of producers and consumers."""
    lines = _LIBRDKAFKA.read_text(encoding="utf-8").splitlines()
    return frozenset(line.split()[0] for line in lines if not line.startswith("#"))


def refuse_unknown(section: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse unknown settings in a section of a plug-in, such as `producer`.

    Raises:
        SettingError: names are unknown; each message has the nearest known one.
    """
    known_names = sorted(known)
    why = "the client has no such setting"
    raise_settings(
        [
            SettingError((section, name), f"{why}{close_to(name, known_names)}")
            for name in names
            if name not in known_names
        ]
    )


def loads_code(name: str) -> bool:
    """Return whether a setting of librdkafka makes this process run code that is not soakd's."""
    return _LOADS_CODE.search(name) is not None


def check_librdkafka(section: str, settings: Mapping[str, str]) -> None:
    """Check a section of librdkafka's settings, such as `common`; a plan may come from elsewhere.

    Raises:
        SettingError: secrets in the plan, unknown names, settings that load code, or one that sends a secret
            unencrypted.
    """
    faults = wrong_settings(
        lambda: refuse_literal_secrets(section, settings, LIBRDKAFKA_SECRETS),
        lambda: refuse_unknown(section, settings, librdkafka_settings()),
    )
    why = "is not allowed in a plan: it runs code or writes files as this user"
    faults += [SettingError((section, name), why) for name in filter(loads_code, settings)]
    endpoint = settings.get(_TOKEN_ENDPOINT, "")
    if endpoint and not is_protected(endpoint):
        why = "must begin with https: the client's secret is not sent unencrypted"
        faults.append(SettingError((section, _TOKEN_ENDPOINT), why))
    raise_settings(faults)


def may_be_unencrypted(settings: Mapping[str, str]) -> bool:
    """Return whether a plan lets a client send its token or password unencrypted to another machine."""
    return settings.get(UNENCRYPTED) == "true"


def refuse_unencrypted(
    section: str, settings: Mapping[str, str], secrets: Collection[str], urls: Iterable[str]
) -> None:
    """Refuse addresses to which one of the secrets would go unencrypted, unless the section allows it.

    Raises:
        SettingError: there is such an address, or the permission is neither true nor false.
    """
    if settings.get(UNENCRYPTED, "false") not in {"true", "false"}:
        raise SettingError((section, UNENCRYPTED), "must be true or false")
    has_secret = any(settings.get(name) for name in secrets)
    if not has_secret or may_be_unencrypted(settings):
        return
    for url in filter(None, urls):
        if not is_protected(url):
            name = next(one for one in secrets if settings.get(one))
            why = f"would be sent to {url.split('?')[0]} unencrypted: use TLS, or set {UNENCRYPTED}: true"
            raise SettingError((section, name), why)


def is_protected(url: str) -> bool:
    """Return whether what is sent to a URL is encrypted, or does not leave this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return parts.scheme in ("https", "pulsar+ssl") or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_secret_reference(text: str) -> bool:
    """Return whether a text refers to a secret instead of holding one."""
    return _REFERENCE.fullmatch(text) is not None


def refuse_literal_secrets(
    section: str, settings: Mapping[str, str], secrets: Collection[str]
) -> None:
    """Refuse secrets in a section of a plug-in, such as `common`; `secrets` are the names of such settings.

    Raises:
        SettingError: some hold anything but a reference, or a URL has a password.
    """
    literal = [
        name for name in secrets if settings.get(name) and not is_secret_reference(settings[name])
    ]
    in_urls = [name for name, text in settings.items() if is_secret_in_url(name, text)]
    why = f"a secret must not stand in a plan: {SECRET_HELP}"
    of_url = "holds a password, which must not stand in a plan"
    raise_settings(
        [
            *(SettingError((section, name), why) for name in literal),
            *(SettingError((section, name), of_url) for name in in_urls),
        ]
    )


def refuse_secrets_in_addresses(where: str, addresses: Iterable[str]) -> None:
    """Raise `ValueError` if an address has a user, a password, or a secret in its query."""
    for one in addresses:
        if is_secret_in_address(one):
            raise ValueError(f"{where} holds a password, which must not stand in a plan")


def is_secret_in_url(name: str, text: str) -> bool:
    """Return whether a setting is a URL with a secret, and not a reference to one."""
    return name.endswith(".url") and not is_secret_reference(text) and is_secret_in_address(text)


def is_secret_in_address(address: str) -> bool:
    """Return whether an address has a user, a password, or a secret in its query."""
    return "@" in address or is_secret_in_query(address)


def is_secret_in_query(url: str) -> bool:
    """Return whether the query of a URL has a parameter with the name of a secret."""
    _, _, query = url.partition("?")
    return any(_PARAMETER.search(one.partition("=")[0]) for one in re.split("[&;]", query))


def resolve_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with every reference replaced by the secret.

    Raises:
        BrokerError: there is no such variable or file; the message names the setting, never a secret.
    """
    return {name: _resolve(name, text) for name, text in settings.items()}


def secrets_named_in(text: str, credentials: Path) -> set[str]:
    """Return the secrets that a text refers to, as far as this process can read them.

    `credentials`: where those of services are kept; this process need not be one.
    """
    found = set()
    for match in _REFERENCE.finditer(text):
        reference = match[0]
        if match["where"] == "credential" and "CREDENTIALS_DIRECTORY" not in os.environ:
            reference = f"${{file:{credentials / match['name']}}}"
        with suppress(BrokerError):
            found.add(_resolve("", reference))
    return found - {""}


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
                "docs/how-to/run-under-systemd.md"
            )
        path = Path(folder) / name
    else:
        path = Path(name)
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokerError(f"{setting}: cannot read {path}: {error}") from error
