"""Has the `Nice=` of a service count beside other services.

The kernel groups processes by session and shares the processor between groups first (sched(7), autogroup). A
service is a session of its own, so its niceness counts within it alone until its group is given the same.
`CPUWeight=` would do that too, but makes groups in which a kernel that has `CONFIG_RT_GROUP_SCHED` leaves no
time for real-time threads: the load would lose its priority. Where another service has such a group, this
changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from soak.core.ports import Clock
from soak.core.units import SECOND_NS
from soak.service.notify import is_main

LOG = logging.getLogger("soak.service.niceness")
OWN_GROUP = Path("/proc/self/autogroup")
_TRIES, _APART_NS = 20, SECOND_NS // 10  # the kernel takes one such word in a tenth of a second


def spread(
    clock: Clock, environment: Mapping[str, str] | None = None, group: Path = OWN_GROUP
) -> None:
    """Give the group of a service's main process its own niceness, where the kernel has such groups."""
    if environment is None:
        environment = os.environ
    niceness = os.getpriority(os.PRIO_PROCESS, 0)  # nice() would set it, which a service may not
    if not is_main(environment) or niceness <= 0:
        return
    for _ in range(_TRIES):
        try:
            group.write_text(str(niceness))
        except BlockingIOError:
            clock.sleep_until(clock.mono_ns() + _APART_NS)
        except OSError as error:
            LOG.info("niceness_of_group_left error=%s", error.strerror)
            return
        else:
            return
    LOG.warning("niceness_of_group_left tries=%d", _TRIES)
