"""`soak init`: write a commented first plan for a cluster, sized by its brokers, and check it."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

import typer

from soak.app import guarantees
from soak.app.check import run_check, without_client_logs
from soak.app.host import own_addresses
from soak.core.clock import SystemClock
from soak.core.errors import (
    BrokerError,
    LoginMissingError,
    NotNowError,
    PlanError,
    SettingError,
    SoakError,
)
from soak.core.plan import text
from soak.core.plan.plan import Plan
from soak.core.wording import GRANT_HINT, amount, counted
from soak.runtime.context import connect

KINDS = ("kafka", "redpanda", "pulsar")
SECURITY = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_DEFAULT_MECHANISM = MECHANISMS[-1]
_KERBEROS = "GSSAPI"
_NO_KERBEROS = (
    "Kerberos is not supported: the Kafka client of Python comes without it; use another listener"
)
PASSWORD = "SOAK_KAFKA_PASSWORD"  # noqa: S105  # the name of a variable
_COPIES = 3  # of each partition, where the cluster has so many brokers
_PARTITIONS_A_BROKER = 4
_BYTES_A_SECOND = 1000 * 1024  # of the load below
_RUN_SECONDS = 15 * 60  # of the phases below
_LIMIT_SECONDS = 5 * 60  # until the first segment of a partition may be deleted
_SEGMENTS = 4  # that each partition keeps; a fifth is filled before the first is deleted
_DEFAULT_BROKERS = 3
_SASL = "SASL_"
_OPTIONS = {
    "set security.protocol to": "give --security",
    "set sasl.mechanism": "give --mechanism",
}
"""The hints of a cluster's errors, and the options of `soak init` that set the same."""
_UNLISTED = "as the cluster does not list its own"
_UNKNOWN = (
    "a guess: the cluster asks for a login or certificate that no option gives. Add it below `broker` "
    "(docs/how-to/secure-cluster.md), correct `partitions` and `replication`, and call `soak check`"
)

_PLAN = Template("""\
# A first soak of a cluster. `soak check --show` prints this plan with every key that is left out here.
name: $name # names the folder of the runs
broker:
$broker
topic: # made by the run, and deleted by `soak clean`
  partitions: $partitions # $partitions_why
  replication: $replication # copies of each partition; $replication_why
${settings}load:
  rate: 1k/s # messages a second of all producers together, kept whatever the brokers do
  message_size: 1KiB
phases:
  warm_up: 1min # recorded and not judged
  soak: 14min # a first look; wear of drives and their garbage collection take 24h to 36h
objectives: # each breach is reported; adapt them to what your users need
  - p99 publish <= 100ms for 90% of minutes
  - 99.9% of messages acknowledged within 1s
probes: # what else is sampled each second, to name a cause
  host: {}
  pressure: {}
${probes}  # Drives, flushes and logs are seen on the brokers' hosts alone: docs/how-to/watch-broker-hosts.md.
detection:
  detectors:
    level_shift: {}
$sinks""")

_SETTINGS = Template("""\
  settings: # by their real names; for a long soak those of your own topics
    retention.bytes: $retention # of each partition: exceeded after 5 minutes, so deletions are judged, too
    segment.bytes: $segment # what is deleted at once
""")
_KAFKA_PROBES = "  round_trip: {}\n  retention_kafka: {directory: null}\n"
_OWN_PROBES = Template("""\
  # The broker $server is on this host. These lines in place of the one above see its drive; LOG_DIRS is what
  # its log.dirs says, such as /var/lib/kafka/data:
  # retention_kafka: {directory: LOG_DIRS}
  # disk_io: {directory: LOG_DIRS}
  # fsync: {directory: LOG_DIRS}
""")
_MAIL = Template("""\
sinks:
  mail:
    to: [$to]
    host: $host # your mail server; `security`, `username` and `password` if it wants them
""")
_NO_MAIL = """\
# Without a sink findings are in the report alone.
# sinks:
#   mail: {to: [oncall@example.org], host: mail.example.org}
"""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a plan needs to know of a cluster.

    `servers` is host:port,host:port, or a Pulsar service URL; `security` and `mechanism` are librdkafka's
    `security.protocol` and `sasl.mechanism`.
    """

    kind: str
    servers: str
    security: str = "PLAINTEXT"
    mechanism: str = _DEFAULT_MECHANISM
    user: str = ""
    ca_file: str = ""
    admin_url: str = ""
    mail_to: str = ""
    mail_host: str = ""


def init(path: Path, answers: Answers) -> None:
    """Write a plan to `path`, fitted to the brokers that answer, and check it.

    Raises:
        PlanError: the file exists, an answer cannot be used, no broker answers, or one refuses a login that
            the answers can hold; nothing is written.
        SoakError: the file cannot be written, or the check finds a fault; the file stays.
    """
    if path.exists():
        raise PlanError(f"{path} exists already; it was not overwritten")
    for option, given, known in (
        ("--kind", answers.kind, KINDS),
        ("--security", answers.security, SECURITY),
        ("--mechanism", answers.mechanism, MECHANISMS),
    ):
        if given not in known:
            raise PlanError(f"{option} {given}: known are {', '.join(known)}")
    _check_kind(answers)
    _check_login(answers)
    if answers.security.startswith(_SASL) and PASSWORD not in os.environ:
        raise PlanError(f"the password is read from the environment: export {PASSWORD}=... first")
    print(f"asking {answers.servers} ...", file=sys.stderr, flush=True)
    with without_client_logs():
        brokers, guessed = _brokers(path, answers)
    own_server = _own_server(answers)
    written = plan_text(path, answers, brokers, own_server)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(written)
    except OSError as error:
        raise SoakError(f"cannot write {path}: {error.strerror}") from error
    size = counted(brokers, "broker")
    print(f"{path} is written for {size}{f', {guessed}' if guessed else ''}.")
    if guessed != _UNKNOWN:
        with without_client_logs():
            lines = _size_lines(text.load(written, str(path)).plan)
        print("\n".join(lines))
    if own_server:
        print(
            f"The broker {own_server} is on this host: `probes` has lines for its drive, as comments."
        )
    if answers.security.startswith(_SASL):
        print(f"The password is read from the environment variable {PASSWORD}.")
    print()
    try:
        run_check(path, False, "", "", False, None)
    except PlanError as error:
        raise PlanError(f"{error}\nThen: soak check {shlex.quote(str(path))}") from error
    print(f"\nNext: soak run {shlex.quote(str(path))}")


def _check_kind(answers: Answers) -> None:
    """Raise `PlanError` for an option that a cluster of this kind does not have, or lacks."""
    is_pulsar = answers.kind == "pulsar"
    if is_pulsar and not answers.admin_url:
        raise PlanError("--kind pulsar needs --admin-url, such as http://host:8080")
    foreign = (
        (
            ("--security", answers.security, SECURITY[0]),
            ("--mechanism", answers.mechanism, _DEFAULT_MECHANISM),
            ("--user", answers.user, ""),
        )
        if is_pulsar
        else (("--admin-url", answers.admin_url, ""),)
    )
    for option, given, default in foreign:
        if given != default:
            raise PlanError(
                f"{option} {given}: a cluster of the kind {answers.kind} has no such option"
            )
    if answers.ca_file and not _uses_tls(answers):
        wanted = "--servers pulsar+ssl://..." if is_pulsar else "--security SSL or SASL_SSL"
        raise PlanError(f"--ca-file {answers.ca_file} is for TLS: give {wanted}, too")


def _uses_tls(answers: Answers) -> bool:
    if answers.kind == "pulsar":
        return answers.servers.startswith("pulsar+ssl:") or answers.admin_url.startswith("https:")
    return answers.security.endswith("SSL")


def _check_login(answers: Answers) -> None:
    """Raise `PlanError` when the options of a login do not go together."""
    is_login = answers.security.startswith(_SASL)
    if is_login and not answers.user:
        raise PlanError(f"--security {answers.security} needs the name of a user: give --user")
    for option, given, default in (
        ("--user", answers.user, ""),
        ("--mechanism", answers.mechanism, _DEFAULT_MECHANISM),
    ):
        if given != default and not is_login:
            raise PlanError(
                f"{option} {given} is for a login, and --security is {answers.security}: "
                "give --security SASL_SSL or SASL_PLAINTEXT"
            )


def ask(given: Answers) -> Answers:
    """Return the answers with those that are missing, asked for at a terminal.

    Raises:
        PlanError: there is no terminal, and the servers are not given.
    """
    if not sys.stdin.isatty():
        if not given.servers:
            raise PlanError("no terminal to ask at: give --servers")
        return given
    what = (
        "Service URL (pulsar://host:6650)"
        if given.kind == "pulsar"
        else "Servers (host:port,host:port)"
    )
    found = replace(given, servers=given.servers or typer.prompt(what))
    if found.kind == "pulsar":
        url = found.admin_url or typer.prompt("Admin URL (http://host:8080)")
        return _with_mail(replace(found, admin_url=url))
    if not given.servers:  # with them, options that are left out have their defaults
        found = replace(found, security=_choice("Security", SECURITY, found.security))
    if found.security.startswith(_SASL) and not found.user:
        mechanism = _choice("Mechanism", MECHANISMS, found.mechanism)
        found = replace(found, mechanism=mechanism, user=typer.prompt("User"))
    return _with_mail(found)


def _choice(question: str, known: Sequence[str], default: str) -> str:
    """Ask until the answer is a known one, in any case."""

    def known_value(answer: str) -> str:
        value = answer.strip().upper()
        if value not in known:
            raise typer.BadParameter(f"{answer}: known are {', '.join(known)}")
        return value

    question = f"{question} ({', '.join(known)})"
    return str(typer.prompt(question, default=default, value_proc=known_value))


def _with_mail(answers: Answers) -> Answers:
    if answers.mail_to and answers.mail_host:
        return answers
    to = answers.mail_to or typer.prompt("Mail address for findings (empty: none)", default="")
    host = answers.mail_host or (typer.prompt("Mail server", default="localhost") if to else "")
    return replace(answers, mail_to=to, mail_host=host)


def plan_text(path: Path, answers: Answers, brokers: int, own_server: str = "") -> str:
    """Return the plan for a cluster of so many brokers; `own_server` is the address of one on this host."""
    copies, partitions = min(_COPIES, brokers), _PARTITIONS_A_BROKER * brokers
    sinks = (
        _MAIL.substitute(
            to=_quoted(answers.mail_to), host=_quoted(answers.mail_host or "localhost")
        )
        if answers.mail_to
        else _NO_MAIL
    )
    is_pulsar = answers.kind == "pulsar"
    return _PLAN.substitute(
        name=_quoted(_name(path)),
        broker="\n".join(f"  {line}" for line in _broker(answers)),
        partitions=partitions,
        partitions_why=f"{_PARTITIONS_A_BROKER} a broker",
        replication=copies,
        replication_why="the brokers that answered" if copies < _COPIES else "as in production",
        settings="" if is_pulsar else _SETTINGS.substitute(_retention(partitions)),
        probes="" if is_pulsar else _KAFKA_PROBES + _own_probes(own_server),
        sinks=sinks,
    )


def _own_probes(own_server: str) -> str:
    """Return lines, as comments, for the drive of a broker on this host; "" where there is none."""
    return _OWN_PROBES.substitute(server=own_server) if own_server else ""


def _own_server(answers: Answers) -> str:
    """Return the first address of the cluster that is one of this host, "" where none is or for Pulsar."""
    if answers.kind == "pulsar":
        return ""
    return next(iter(own_addresses(answers.servers)), "")


def _retention(partitions: int) -> dict[str, int]:
    """Return the limits of a partition, whole MiB, as segments below one are refused by some brokers."""
    share = _BYTES_A_SECOND * _LIMIT_SECONDS / (partitions * (_SEGMENTS + 1))
    segment = math.ceil(share / 2**20) * 2**20
    return {"retention": segment * _SEGMENTS, "segment": segment}


def _size_lines(plan: Plan) -> Sequence[str]:
    """Return what a run writes and what the brokers hold of it, as `soak check` forecasts it.

    Without an answer of the cluster there is no figure: the check that follows names the reason.
    """
    takes = f"A run takes {_RUN_SECONDS // 60} minutes"
    try:
        forecast = guarantees.forecast_plan(plan, (), Path(plan.run_directory))
    except BrokerError:
        return [f"{takes}."]
    if forecast.found is None:
        return [f"{takes}."]
    written = amount(forecast.found.written_bytes, "bytes")
    held = amount(forecast.found.most_held_bytes, "bytes")
    return [
        f"{takes} and writes {written}; the brokers hold at most {held} of it, until `soak clean`.",
        # The command that grants a right comes with the check, where it can be copied.
        *(f"  note: {note.partition(GRANT_HINT)[0]}" for note in forecast.limits.notes),
    ]


def _broker(answers: Answers) -> Sequence[str]:
    """Return the lines of the section `broker`."""
    if answers.kind == "pulsar":
        return (
            "pulsar:",
            f"  service_url: {_quoted(answers.servers)}",
            f"  admin_url: {_quoted(answers.admin_url)}",
            *_pulsar_client(answers),
        )
    lines = [f"{answers.kind}:", f"  bootstrap_servers: {_quoted(answers.servers)}"]
    settings: dict[str, str] = {}
    if answers.security != SECURITY[0]:
        settings["security.protocol"] = answers.security
    if answers.security.startswith(_SASL):
        settings["sasl.mechanism"] = answers.mechanism
        settings["sasl.username"] = answers.user
        settings["sasl.password"] = f"${{env:{PASSWORD}}}"
    if answers.ca_file:
        settings["ssl.ca.location"] = answers.ca_file
    if settings:
        lines.append("  common: # settings of librdkafka, by their real names")
        lines += [f"    {name}: {_quoted(value)}" for name, value in settings.items()]
    return lines


def _pulsar_client(answers: Answers) -> Sequence[str]:
    """Return the lines of `client`, with a token as a comment."""
    if not answers.ca_file:
        return [
            "  # client: {authentication: token, token: '${file:/etc/soak/token}'} # over TLS alone"
        ]
    return (
        "  client: # settings of the Python client, by their own names",
        f"    tls_trust_certs_file_path: {_quoted(answers.ca_file)}",
        "    tls_validate_hostname: true",
        "    # authentication: token",
        "    # token: '${file:/etc/soak/token}'",
    )


def _brokers(path: Path, answers: Answers) -> tuple[int, str]:
    """Return how many brokers the cluster has, and why that is a guess, "" where it is none.

    Raises:
        PlanError: no broker answers, the client refuses its settings, or another answer would log in.
    """
    found = text.load(plan_text(path, answers, _DEFAULT_BROKERS), str(path))
    broker = connect(found.plan, SystemClock())
    try:
        broker.check()
    except SettingError as error:
        raise PlanError(f"no plan was written: {error}") from error
    except LoginMissingError as error:
        if set(error.logins) == {_KERBEROS}:
            raise PlanError(f"no plan was written: {error}; {_NO_KERBEROS}") from error
        if set(error.logins).isdisjoint(MECHANISMS):
            return _DEFAULT_BROKERS, _UNKNOWN
        raise NotNowError(f"no plan was written: {_with_options(error)}") from error
    except BrokerError as error:
        raise NotNowError(f"no plan was written: {_with_options(error)}") from error
    try:
        return max(1, broker.broker_count()), ""
    except BrokerError:  # Pulsar lists its brokers for superusers alone
        return _DEFAULT_BROKERS, _UNLISTED


def _with_options(error: BrokerError) -> str:
    """Return the text of an error whose hints name options: there is no plan yet whose keys could be set."""
    found = str(error)
    for hint, option in _OPTIONS.items():
        found = found.replace(hint, option)
    return found


def _name(path: Path) -> str:
    """Return the name of the plan: that of its file, of the characters that a name may have."""
    allowed = (
        one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in path.stem
    )
    return "".join(allowed).lstrip("-.") or "soak"


def _quoted(value: str) -> str:
    """Return a text as YAML: JSON is a part of it."""
    return json.dumps(value, ensure_ascii=False)
