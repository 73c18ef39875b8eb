"""Writes and flushes beside a broker: `python -m soak.lab.neighbour FOLDER BYTES_PER_SECOND BLOCK_BYTES`.

Its file has no name, so nothing is left when it is killed. Its rate is limited: one that runs free would
write hundreds of megabytes a second.
"""

from __future__ import annotations

import os
import sys

from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS

_FILE_BYTES = 2**26  # written over and over


def main() -> None:
    folder, rate, block = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    clock, payload = SystemClock(), os.urandom(block)
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    due_ns, at = clock.mono_ns(), 0
    while True:
        os.pwrite(file, payload, at)
        os.fdatasync(file)
        at = (at + block) % max(block, _FILE_BYTES)
        due_ns = max(due_ns + block * SECOND_NS // rate, clock.mono_ns() - SECOND_NS)
        clock.sleep_until(due_ns)


if __name__ == "__main__":
    main()
