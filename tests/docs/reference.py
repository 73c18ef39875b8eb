"""The generated parts of docs/reference: `python -m tests.docs.reference` writes them, `--check` compares.

A page has blocks between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of it is written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from detectors import attribution
from soak.cli import help as command_help
from soak.cli import main
from soak.core.plan import plugins
from soak.core.plan import text as plan_text
from soak.core.plan.config import FormerName
from soak.core.plan.plan import PLUGIN_SECTIONS, Plan
from soak.core.units import Duration, PerDuration, Rate, Size
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PACKAGES = ("soak", "probes", "spark", "detectors")


def _escaped(cell: str) -> str:
    """Return a cell that shows what it says: outside code, `<name>` would be taken for HTML and vanish."""
    parts = cell.replace("|", "\\|").split("`")
    return "`".join(part if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(parts))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown, with a blank line before and after it."""
    cells = [head, ["---"] * len(head), *rows]
    lines = ("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in cells)
    return "\n" + "\n".join(lines) + "\n\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


# --- the keys of a plan


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a plan: its path without lists and names, its type, and its default as a plan writes it."""

    path: str
    kind: str
    default: str
    former: str = ""


_NAMES: Mapping[Any, str] = {
    Duration: "duration",
    Size: "size",
    Rate: "rate",
    PerDuration: "one per duration",
}
_BASIC: Mapping[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
}
_MEANINGS = {
    "broker": "exactly one kind of cluster",
    "broker.kafka": "an Apache Kafka",
    "broker.pulsar": "an Apache Pulsar",
    "topic": "the topics of the run",
    "load": "what is sent",
    "consumers": "what is received",
    "journal": "how records are stored",
    "detection": "how changes are found",
    "detection.detectors": "one section a detector",
    "broker.redpanda": "a Redpanda; the keys are those of kafka, with linger.ms: 5",
    "broker.redpanda.timeout": "as of kafka",
    "broker.redpanda.producer": "as of kafka, but linger.ms: 5",
    "broker.redpanda.consumer": "as of kafka",
    "broker.redpanda.common": "as of kafka",
    "lab.drive.filesystem": "of the injected drive",
    "load.keys": "record keys",
    "load.keys.kind": "how keys are chosen; the client's own hash of the key picks the partition",
    "load.message_sizes.share": "of the messages; all shares add up to 1",
    "load.message_sizes.size": "of a message",
    "load.profile.steps.after": "from the start of the soak",
    "load.profile.steps.rate": "from then on",
    "limits.topics": "that the run makes",
    "phases": "how long each phase lasts, in whole seconds",
    "phases.windows.every": "time between two, from the start of the soak; this or `cron`",
    "phases.windows.cron": "when, as a cron expression in UTC",
    "phases.windows.catch_up": "as `phases.catch_up`",
    "probes.fsync.directory": "as of disk_io",
    "probes.fsync.sync": "the call that is timed; `directory` flushes the folder after a new name in it",
    "probes.fsync.write": "overwrite the same block, or append as brokers write",
    "probes.prometheus.targets": "what is read, by a name that becomes the label `target`",
    "probes.prometheus.targets.kind": "a metrics page, or a Prometheus server that has scraped it",
    "ship.topic": "of that cluster; made with 8 partitions if it does not exist",
    "sampling.period": "the probe is read this often; 1s to 1h",
    "sampling.timeout": "a reading that takes longer has failed",
    "detection.detectors.level_shift": "looks for every kind of change, in each run",
    "sinks.mail": "mail, by SMTP",
    "sinks.mail.to": "recipients",
    "sinks.mail.sender": "sender of the mails",
    "sinks.mail.port": "of the mail server",
    "sinks.mail.security": "starttls upgrades a connection; tls encrypts from the first byte (port 465)",
    "sinks.webhook.url": "of Alertmanager, such as http://alertmanager:9093",
    "sinks.webhook.ca_file": "a certificate that this machine does not trust by default",
    "alerts": "when and how notifications are sent",
    "alerts.maintenance.cron": "when a window begins, as a cron expression in UTC",
    "alerts.maintenance.length": "of the window",
}
for _name in ("backlog_size", "backlog_age", "drain_limit", "settle"):
    _MEANINGS[f"phases.windows.catch_up.{_name}"] = f"as `phases.catch_up.{_name}`"
"""Sections without a comment in configs/reference.yaml, and keys that it shows within a line."""


def plan_keys() -> list[Key]:
    """Return every key that a plan may have, plug-ins included, in the order of the sections."""
    found: list[Key] = []
    for field in dataclasses.fields(Plan):
        package = {place[-1]: one for place, one in PLUGIN_SECTIONS.items()}.get(field.name)
        package = None if field.name == "detectors" else package
        found += _field_keys(Plan, field, "")
        if package is not None:
            found += _plugin_keys(package, field.name)
        if field.name == "detection":
            for name, config in _detectors().items():
                found.append(Key(f"detection.detectors.{name}", "section", ""))
                found += _keys(type(config), f"detection.detectors.{name}.")
    return list({key.path: key for key in found}.values())


def _plugin_keys(package: str, place: str) -> Iterator[Key]:
    for name in plugins.names(package):
        module = plugins.load(package, name)
        yield Key(f"{place}.{name}", "section", "")
        yield from _keys(module.Config, f"{place}.{name}.")


def _detectors() -> Mapping[str, Any]:
    """Return the settings of every detector of a run, by name."""
    return plan_text.load("name: p\nbroker: {kafka: {}}\n", "p").plan.detection.detectors


def _keys(kind: type[Any], prefix: str) -> Iterator[Key]:
    for field in dataclasses.fields(kind):
        yield from _field_keys(kind, field, prefix)


def _field_keys(kind: type[Any], field: dataclasses.Field[Any], prefix: str) -> Iterator[Key]:
    hint = get_type_hints(kind, include_extras=True)[field.name]
    path = f"{prefix}{field.name}"
    inner = next(_dataclasses(hint), None)
    default = _default(kind, field)
    kind_text = _section_kind(hint) if inner is not None else _kind(hint)
    yield Key(
        path,
        kind_text,
        "" if kind_text == "section" and default[:1] == "{" else default,
        _former(hint),
    )
    if inner is not None:
        yield from _keys(inner, f"{path}.")


def _dataclasses(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _dataclasses(inner)


def _former(hint: Any) -> str:
    marks = getattr(hint, "__metadata__", ())
    return next((one.name for one in marks if isinstance(one, FormerName)), "")


def _section_kind(hint: Any) -> str:
    text = str(hint)
    is_list = text.startswith("tuple") or "tuple[" in text[:40]
    return "list of sections" if is_list else "named sections" if "dict[" in text else "section"


def _kind(hint: Any) -> str:
    """Return the type of a value in plain words."""
    marks = getattr(hint, "__metadata__", ())
    for known, word in _NAMES.items():
        if marks and all(one in marks for one in known.__metadata__):
            return word
    if hint in _BASIC:
        return _BASIC[hint]
    options = [str(one) for part in (hint, *get_args(hint)) for one in _literals(part)]
    if options:
        return " or ".join(map(code, dict.fromkeys(options)))
    text = str(hint)
    if text.startswith("tuple") or "tuple[" in text:
        return "list"
    if "dict[" in text:
        return "settings"
    inner = [one for one in get_args(hint) if one is not type(None)]
    return _kind(inner[0]) if inner else "text"


def _literals(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if "Literal" in str(getattr(hint, "__origin__", "")) else ()


def _default(kind: type[Any], field: dataclasses.Field[Any]) -> str:
    """Return the default as a plan writes it; "" for a section, `required` where there is none."""
    adapter = TypeAdapter(kind)
    try:
        values = adapter.dump_python(kind(), mode="json")
    except (ValidationError, ValueError, TypeError):
        values = {}
        missing = dataclasses.MISSING
        if field.default is missing and field.default_factory is missing:
            return "required"
        hint = get_type_hints(kind, include_extras=True)[field.name]
        value = field.default if field.default is not missing else None
        try:
            values[field.name] = TypeAdapter(hint).dump_python(value, mode="json")
        except (ValidationError, ValueError, TypeError):
            values[field.name] = value
    value = values.get(field.name)
    if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
        return ""
    if dataclasses.is_dataclass(field.default) or (
        isinstance(value, dict) and next(_dataclasses(field.type), None) is not None
    ):
        return ""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("...").strip()


def meanings(text: str) -> dict[str, str]:
    """Return the comment of each key in configs/reference.yaml, by its path."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = re.match(r"^(\s*)(# )?(\s*)(- )?([\w.]+):(?: (.*))?$", line)
        if match is None or (match[2] and not match[1] and line.startswith("# A ")):
            continue
        indent = len(match[1]) + len(match[3])
        is_comment = bool(match[2])
        while stack and stack[-1][0] >= indent:
            stack.pop()
        if is_comment and stack and stack[-1][0] >= indent:
            stack.pop()
        key = match[5]
        path = ".".join([*(name for _, name in stack), key])
        stack.append((indent, key))
        rest = match[6] or ""
        _, found_comment, comment = _without_quotes(rest).partition("# ")
        if found_comment and path not in found:
            found[path] = comment.strip()
    return {re.sub(r"\.targets\.broker1", ".targets", path): one for path, one in found.items()}


def key_meanings() -> dict[str, str]:
    """Return what each key means, by its path, without words that only fit the file of the comment."""
    found = {**meanings((ROOT / "configs" / "reference.yaml").read_text()), **_MEANINGS}
    return {
        path: re.sub(r"^required[:;] |,( or)? as (below|above)$|, as (below|above)(?=;)", "", text)
        for path, text in found.items()
    }


def _without_quotes(text: str) -> str:
    """Return a value with its comment, without marks of comments inside quotes."""
    return re.sub(r"'[^']*'(?=[^#]*#)", lambda m: m[0].replace("#", " "), text)


def plan_page() -> str:
    """Return a table for each section of a plan."""
    said = key_meanings()
    keys = plan_keys()
    parts = []
    for section in dict.fromkeys(key.path.split(".")[0] for key in keys):
        own = [key for key in keys if key.path.split(".")[0] == section]
        rows = [
            (
                code(key.path),
                key.kind,
                code(key.default) if key.default != "required" else "required",
                said.get(key.path, "") + (f" (formerly `{key.former}`)" if key.former else ""),
            )
            for key in own
        ]
        parts.append(f"\n## {section}\n" + table(("key", "type", "default", "meaning"), rows))
    return "".join(parts).rstrip() + "\n\n"


# --- commands


def command_walk() -> Iterator[tuple[str, TyperCommand]]:
    """Give every command that can be called, by its words."""
    yield from _walk(get_command(main.build([])), "soak")


def _walk(command: object, words: str) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for name, one in sorted(command.commands.items()):
            yield from _walk(one, f"{words} {name}")
    elif isinstance(command, TyperCommand):
        yield words, command


def cli_page() -> str:
    """Return the panels of the help, and a section for each command: call, help, options and an example."""
    parts = [table(("task", "commands"), _panel_rows()).rstrip() + "\n"]
    for words, command in command_walk():
        arguments = [one for one in command.params if not isinstance(one, TyperOption)]
        options = [one for one in command.params if isinstance(one, TyperOption)]
        call = " ".join(
            [
                words,
                *(
                    name if one.required else f"[{name}]"
                    for one in arguments
                    if (name := str(one.name).upper())
                ),
            ]
        )
        about = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
        parts.append(f"\n## {words}\n\n`{call}`\n\n{about}\n")
        rows = [
            (
                code(", ".join(one.opts + one.secondary_opts)),
                _option_type(one),
                code(_option_default(one)),
                one.help or "",
            )
            for one in options
            if "--help" not in one.opts
        ]
        if rows:
            parts.append(table(("option", "takes", "default", "meaning"), rows).rstrip() + "\n")
        if command.epilog:
            parts.append(f"\nExample: {code(command.epilog.removeprefix('Example: '))}\n")
    return "".join(parts) + "\n"


def _panel_rows() -> list[tuple[str, str]]:
    """Return the commands by the panels of the help, those of a group by their words; daemons last."""
    found: dict[str, list[str]] = {panel: [] for panel in command_help.PANELS}
    daemons: list[str] = []
    for words, _ in command_walk():
        panel = command_help.panel_of(words.split()[1])
        (daemons if panel is None else found[panel]).append(words)
    found["Started by `soak run` and systemd"] = daemons
    order = command_help.order
    return [
        (
            panel,
            ", ".join(
                f"[{words.removeprefix('soak ')}](#{words.replace(' ', '-')})"
                for words in sorted(commands, key=lambda words: order(words.split()[1]))
            ),
        )
        for panel, commands in found.items()
    ]


def _option_type(option: TyperOption) -> str:
    """Return what an option takes, in plain words; "" for a switch."""
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation
    inner = get_args(kind)[0] if get_args(kind) else kind
    if isinstance(inner, type) and issubclass(inner, Enum):
        return " or ".join(code(str(one.value)) for one in inner)
    words = {str: "text", int: "number", float: "number", Path: "path"}
    name = words.get(inner, str(getattr(inner, "__name__", inner)))
    return f"{name}, repeatable" if option.multiple else name


def _option_default(option: TyperOption) -> str:
    value = option.default.value if isinstance(option.default, Enum) else option.default
    if value in (None, "", False, (), []) or callable(value):
        return ""
    return str(value).replace(f"{ROOT}/", "")


# --- log events


def log_events() -> list[tuple[str, str, str, str]]:
    """Return event, level, module and fields of each line that a daemon may log."""
    found = []
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and (one := _log_call(node)):
                    level, text = one
                    event, _, fields = text.partition(" ")
                    if re.fullmatch(r"[a-z][a-z0-9_]+", event):
                        module = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
                        names = re.findall(r"(\w+)=", fields)
                        found.append((event, level, module, ", ".join(names)))
    return sorted(set(found))


def _log_call(node: ast.Call) -> tuple[str, str] | None:
    target = node.func
    if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)):
        return None
    if target.value.id not in {"LOG", "log", "_LOG"} or not node.args:
        return None
    first = node.args[0]
    if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
        return None
    return target.attr, first.value


def log_page() -> str:
    levels = {"exception": "error", "critical": "error"}
    rows = [
        (code(event), levels.get(level, level), code(module), fields)
        for event, level, module, fields in log_events()
    ]
    return table(("event", "level", "module", "fields"), rows)


# --- metrics and events of name maps and patterns


def map_page() -> str:
    """Return the metrics of each shipped name map: name, unit, kind."""
    parts = []
    for path in sorted((ROOT / "probes" / "prometheus" / "name_maps").glob("*.toml")):
        entries = {one["name"]: one for one in reversed(tomllib.loads(path.read_text())["metric"])}
        rows = sorted(
            (code(str(name)), str(one.get("unit", "")), str(one.get("kind", "gauge")))
            for name, one in entries.items()
        )
        parts.append(
            f"\n### {path.stem}\n" + table(("metric", "unit", "kind"), rows).rstrip() + "\n"
        )
    return "".join(parts) + "\n"


def pattern_page() -> str:
    kinds: dict[str, list[str]] = {}
    for path in sorted((ROOT / "probes" / "broker_log" / "log_patterns").glob("*.toml")):
        for one in tomllib.loads(path.read_text())["pattern"]:
            kinds.setdefault(str(one["kind"]), []).append(path.stem)
    rows = [(code(kind), ", ".join(dict.fromkeys(maps))) for kind, maps in sorted(kinds.items())]
    return table(("event", "patterns"), rows)


# --- probes, drills, plans, units, causes


def probe_page() -> str:
    """Return a row for each probe: what it measures, its source and its cost."""
    rows = []
    for name in plugins.names("probes"):
        text = inspect.getdoc(plugins.load("probes", name)) or ""
        first = text.split("\n\n")[0].replace("\n", " ").removesuffix(".")
        rows.append((code(name), first, _part(text, "Source"), _part(text, "Overhead")))
    return table(("probe", "measures", "source", "costs"), rows)


def _part(text: str, title: str) -> str:
    match = re.search(rf"^{title}:\s+(.*?)(?=^\w+:|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(match[1].split()) if match else ""


def drill_page() -> str:
    """Return a row for each drill that ships."""
    folder = ROOT / "configs" / "drills"
    rows = []
    for path in sorted(folder.glob("*.yaml")):
        one = yaml.safe_load(path.read_text())
        lab = yaml.safe_load((folder / one["plan"]).read_text()).get("lab") or {}
        fault = one.get("fault") or {}
        cause = one.get("expect", {}).get("cause", "")
        needs = "root, FUSE" if lab.get("drive") else "-"
        about = one["description"].removesuffix(".")
        rows.append(
            (code(path.stem), about, code(fault.get("kind", "")) or "-", code(cause), needs)
        )
    return table(("drill", "what happens", "fault", "expected cause", "needs"), rows)


def shipped_page() -> str:
    """Return a row for each plan that ships: the first sentence of its comment."""
    rows = []
    for path in sorted((ROOT / "configs" / "plans").glob("*.yaml")):
        lines = path.read_text().splitlines()
        comment = " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))
        rows.append((code(path.stem), comment.split(". ")[0].removesuffix(".")))
    return table(("plan", "shows"), rows)


def unit_page() -> str:
    """Return a row for each unit: what it does, when it restarts, and its watchdog."""
    rows = []
    for path in sorted((ROOT / "systemd").iterdir()):
        if path.suffix not in {".service", ".target", ".timer"}:
            continue
        text = path.read_text()
        about = re.search(r"^Description=(?:Soak %i: )?(.*)$", text, re.MULTILINE)
        watchdog = re.search(r"^WatchdogSec=(.*)$", text, re.MULTILINE)
        memory = re.search(r"^MemoryMax=(.*)$", text, re.MULTILINE)
        rows.append(
            (
                code(path.name),
                about[1] if about else "",
                watchdog[1] if watchdog else "",
                memory[1] if memory else "",
            )
        )
    return table(("unit", "does", "watchdog", "memory limit"), rows)


def cause_page() -> str:
    rows = [(f"[{cause}](causes.md#{cause})", step) for cause, step in attribution.causes().items()]
    return table(("cause", "first step"), rows)


def own_commands(kind: str) -> str:
    """Return a row for each cause that another command confirms on this kind of cluster than on Kafka."""
    usual, own = map(attribution.confirmations, ("kafka", kind))
    rows = [
        (f"[{cause}](causes.md#{cause})", filled.where, code(filled.command), filled.sign)
        for cause, one in own.items()
        if one != usual.get(cause)
        for filled in [one.filled({})]
    ]
    return table(("cause", "where", "run", "shows"), rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "plan-keys": plan_page,
    "commands": cli_page,
    "log-events": log_page,
    "name-maps": map_page,
    "log-patterns": pattern_page,
    "probes": probe_page,
    "drills": drill_page,
    "shipped-plans": shipped_page,
    "units": unit_page,
    "causes": cause_page,
    "confirm-on-pulsar": lambda: own_commands("pulsar"),
    "confirm-on-redpanda": lambda: own_commands("redpanda"),
}


def generated(text: str) -> str:
    """Return a page with every generated block made anew from the code."""
    return _BLOCK.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]()}{match[3]}", text)


def pages() -> Iterator[Path]:
    """Give the pages that have a generated block."""
    for page in sorted(DOCS.rglob("*.md")):
        if _BLOCK.search(page.read_text()):
            yield page


def stale_pages() -> list[str]:
    """Return the pages whose generated blocks differ from the code."""
    return [
        str(page.relative_to(ROOT))
        for page in pages()
        if generated(page.read_text()) != page.read_text()
    ]


def run(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        stale = stale_pages()
        sys.stdout.write("".join(f"{page} is out of date: make reference\n" for page in stale))
        return bool(stale)
    for page in pages():
        page.write_text(generated(page.read_text()))
        sys.stdout.write(f"{page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
