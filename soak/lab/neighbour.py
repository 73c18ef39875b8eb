"""Write and flush next to a broker: `python -m soak.lab.neighbour FOLDER BYTES_PER_SECOND BLOCK_BYTES`.

The file has no name, so nothing remains when the process is killed. The rate is limited, because an unlimited
writer would write hundreds of megabytes a second.
"""

from __future__ import annotations

import os
import sys

from soak.core.clock import SystemClock
from soak.core.units import SECOND_NS

_FILE_BYTES = 2**26  # overwritten again and again


def main() -> None:
    folder, rate, block = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    clock, payload = SystemClock(), os.urandom(block)
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    due_ns, offset = clock.mono_ns(), 0
    while True:
        os.pwrite(file, payload, offset)
        os.fdatasync(file)
        offset = (offset + block) % max(block, _FILE_BYTES)
        due_ns = max(due_ns + block * SECOND_NS // rate, clock.mono_ns() - SECOND_NS)
        clock.sleep_until(due_ns)


if __name__ == "__main__":
    main()
