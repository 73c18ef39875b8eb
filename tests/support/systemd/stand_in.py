"""Our units with a stand-in for `soak` in them, under a real manager, for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.app.units import rendered_files
from tests.support.systemd.world import World, booted


@contextmanager
def standing_in(shared: Path, program: str) -> Iterator[World]:
    """A manager with our units, in which this text is the program, and the folder of a plan `x`."""
    script = shared / "soak"
    script.write_text(f"#!{sys.executable}\n{program}")
    script.chmod(0o755)
    shared.chmod(0o755)  # /srv of the user soak
    units = shared / "units"
    units.mkdir()
    for place, text in rendered_files().items():
        own = text.replace(f"={Path(sys.prefix) / 'bin' / 'soak'} ", "=/srv/soak ")
        (units / place.name).write_text(own)
    with booted(shared) as found:
        found.run("bash", "-c", "cp /srv/units/soak* /etc/systemd/system")
        found.run("systemd-sysusers", "/etc/systemd/system/soak.conf")
        found.run("install", "-d", "-o", "soak", "-g", "soak", "/var/lib/soak", "/var/lib/soak/x")
        found.run("mkdir", "-p", "/etc/soak/credentials")
        found.run("systemctl", "daemon-reload")
        yield found
