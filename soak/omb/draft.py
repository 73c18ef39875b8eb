"""A plan while it is put together from the benchmark's files, and what could not be carried over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from soak.core import plan_text


@dataclass(slots=True)
class Draft:
    """Sections of a plan, only with what the files say; `notes` name file, line and key."""

    body: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, place: str, value: object) -> None:
        """Set a dotted key such as `load.rate`."""
        *sections, key = place.split(".")
        section = self.body
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value

    def text(self, name: str) -> str:
        """Return the plan, notes as comments before it.

        Raises:
            PlanError: what the files ask for cannot be run; names the key of the plan.
        """
        self.body.setdefault("name", "omb")
        if "broker" not in self.body:
            self.put("broker.kafka", {})
            self.notes.append("no driver was given: a lab Kafka is fetched and started")
        ordered = {key: self.body[key] for key in _ORDER if key in self.body}
        body = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100)
        text = "".join(f"# {' '.join(note.split())}\n" for note in self.notes) + body
        plan_text.load(text, name)
        return text


_ORDER = ("name", "broker", "topic", "load", "consumers", "phases")
