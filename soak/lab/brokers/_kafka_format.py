"""Formats the data folder of a Kafka node: with Kafka's tool once, from then on with a copy of its answer.

The tool takes a second of CPU, and all that differs between two of its answers are the ids.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import uuid
from pathlib import Path

from soak.lab.brokers import _kafka_files as files
from soak.lab.brokers import _kafka_jvm as jvm
from soak.lab.brokers._tool import run_tool

_TEMPLATE = "bootstrap.checkpoint"
_META = "meta.properties"
_FORMAT_SECONDS = 60.0


def cluster_of(data: Path) -> str | None:
    """Return the id of the cluster that a data folder belongs to; None when it is not formatted."""
    try:
        text = (data / _META).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^cluster\.id=(.+)$", text, re.MULTILINE)
    return found[1] if found else None


def format_data(folder: Path, data: Path, jars: Path, cluster_id: str, number: int) -> None:
    """Format the data folder of node `number`, whose configuration lies in `folder`.

    Raises:
        LabError: Kafka's tool failed, or did not end.
    """
    template = jars / _TEMPLATE
    if not template.exists():
        _run_tool(folder, jars, cluster_id)
        draft = jars / f".{_TEMPLATE}.{os.getpid()}"
        shutil.copyfile(data / _TEMPLATE, draft)
        draft.replace(template)
        return
    data.mkdir(exist_ok=True)
    shutil.copyfile(template, data / _TEMPLATE)
    (data / _META).write_text(files.meta_properties(cluster_id, new_id(), number))


def new_id() -> str:
    """Return an id as Kafka makes them: 16 random bytes, URL-safe base64, not led by a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
        if not text.startswith("-"):
            return text


def _run_tool(folder: Path, jars: Path, cluster_id: str) -> None:
    tool = [*jvm.command(folder, jars, ()), "kafka.tools.StorageTool", "format", "-t", cluster_id]
    tool += ["-c", str(folder / "server.properties")]
    log = folder / "logs" / "format.log"
    run_tool("Kafka's storage tool", tool, folder, _FORMAT_SECONDS, log)
