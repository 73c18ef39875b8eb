"""Folders of several drives: how a plan names them, and one probe of each, read as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from pydantic import BeforeValidator

from soak.core.errors import NotAvailableError, PartialReadingError, ProbeError
from soak.core.model import Column, Reading
from soak.core.ports import Probe


def _joined(value: object) -> object:
    """Return a list of folders as one text, as Kafka's `log.dirs` has them; anything else as it is."""
    if not isinstance(value, list | tuple):
        return value
    for item in value:
        if not isinstance(item, str) or not item.strip() or "," in item:
            raise ValueError(f"{item!r} is not the name of a folder")
    return ",".join(value)


FolderList = Annotated[str, BeforeValidator(_joined)]
"""Folders as a list, or as one text with commas; kept as that text, empty for none."""


def folders_of(text: str | None) -> list[str]:
    """Return the folders of a `FolderList` in order, each once."""
    names = (one.strip() for one in (text or "").split(","))
    return list(dict.fromkeys(name for name in names if name))


def probe_of_each(text: str, build: Callable[[str], Probe]) -> Probe:
    """Return the probe of the only folder, or one that reads the probes of all."""
    folders = folders_of(text)
    if len(folders) > 1:
        return EachFolder({folder: build(folder) for folder in folders})
    return build(folders[0] if folders else "")


class EachFolder:
    """Reads one probe of each folder; a folder that fails does not affect the others."""

    def __init__(self, probes: Mapping[str, Probe]) -> None:
        self._probes = probes

    def read(self) -> Reading:
        """Return what all of them measured; a series that several have, as of one drive, once.

        Raises:
            NotAvailableError: none has anything to measure.
            PartialReadingError: one failed, or has nothing to measure while others have.
        """
        readings: list[Reading] = []
        errors: list[ProbeError | NotAvailableError] = []
        for probe in self._probes.values():
            try:
                readings.append(probe.read())
            except PartialReadingError as error:
                readings.append(error.reading)
                errors.append(error)
            except (ProbeError, NotAvailableError) as error:
                errors.append(error)
        if not errors:
            return _merged(readings)
        if len(errors) == len(self._probes) and all(
            isinstance(error, NotAvailableError) for error in errors
        ):
            raise errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise PartialReadingError(f"{errors[0]}{more}", _merged(readings)) from errors[0]

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()


def _merged(readings: list[Reading]) -> Reading:
    samples: dict[Column, float] = {}
    for reading in readings:
        for column, value in reading.samples:
            samples.setdefault(column, value)
    return Reading(
        tuple(samples.items()),
        tuple(event for reading in readings for event in reading.events),
        sum(reading.cost_seconds for reading in readings),
    )
