"""The man page and the shell completion, generated from the commands themselves.

`python -m soak.cli.man` prints the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as its docs do
from typer.core import TyperCommand, TyperGroup, TyperOption

NAME = "soak"
_FILES = (
    ("/etc/soak/NAME.yaml", "A plan that systemd runs."),
    ("/etc/soak/credentials/", "Secrets that plans name."),
    ("/var/lib/soak/NAME/", "Its runs, one folder each; `current` is the newest."),
)


def page(root: TyperGroup) -> str:
    """Return soak.1, in man(7)'s macros."""
    about = (root.help or "").strip()
    lines = [
        f'.TH SOAK 1 "" "soakd {version("soakd")}" "User Commands"',
        ".SH NAME",
        rf"{NAME} \- soak and degradation detector for Kafka, Redpanda and Pulsar",
        ".SH SYNOPSIS",
        rf"\fB{NAME}\fR \fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...",
        ".SH DESCRIPTION",
        _escaped(about),
        ".SH COMMANDS",
    ]
    for words, command in _commands(root, ()):
        lines += _command(words, command)
    lines.append(".SH FILES")
    for path, means in _FILES:
        lines += [".TP", rf"\fI{_escaped(path)}\fR", _escaped(means)]
    return "\n".join(lines) + "\n"


def bash_completion() -> str:
    """Return what bash is to read to complete the commands and their options."""
    variable = f"_{NAME.upper()}_COMPLETE"
    script = get_completion_script(prog_name=NAME, complete_var=variable, shell="bash")  # noqa: S604
    return f"{script}\n"


def _commands(
    command: object, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    """Give every command that can be called, by its words."""
    if isinstance(command, TyperGroup):
        for name, one in sorted(command.commands.items()):
            yield from _commands(one, (*words, name))
    elif isinstance(command, TyperCommand):
        yield words, command


def _command(words: tuple[str, ...], command: TyperCommand) -> list[str]:
    """Return the section of one command: how it is called, what it does, its options."""
    arguments = [one for one in command.params if not isinstance(one, TyperOption)]
    options = [one for one in command.params if isinstance(one, TyperOption)]
    called = " ".join(
        _escaped(str(one.name).upper() if one.required else f"[{str(one.name).upper()}]")
        for one in arguments
    )
    lines = [f".SS {_escaped(' '.join((NAME, *words)))} {called}".rstrip()]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [_escaped(" ".join(paragraph.split())), ".PP"]
    for one in options:
        lines += [".TP", rf"\fB{_escaped(', '.join(one.opts))}\fR", _escaped(one.help or "")]
    if command.epilog:
        lines += [".PP", _escaped(command.epilog)]
    return lines


def _escaped(text: str) -> str:
    """Return text that roff prints as it stands."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{plain}" if plain.startswith((".", "'")) else plain
