"""Where the parts of a drive lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DriveFolder:
    """Paths only; nothing is created by looking."""

    path: Path

    @property
    def control(self) -> Path:
        return self.path / "control.json"

    @property
    def counters(self) -> Path:
        return self.path / "counters.json"

    @property
    def ready(self) -> Path:
        """Return the file that names the keeper and the device once the drive is mounted."""
        return self.path / "device"

    @property
    def image(self) -> Path:
        return self.path / "image"

    @property
    def mount_point(self) -> Path:
        return self.path / "mount"

    @property
    def log(self) -> Path:
        return self.path / "drive.log"
