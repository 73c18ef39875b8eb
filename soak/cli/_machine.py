"""What `soak check` tells of this machine: how its clock is kept, and how the brokers' drives are set up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from probes import _timex
from probes._timex import Timex
from soak.core.drive_check import DriveState, Measured, warnings
from soak.core.errors import NotAvailableError, ProbeError
from soak.core.wording import amount
from soak.daemons.context import host_name
from soak.daemons.drive_check import distinct, state_of


def told(
    folders: Sequence[str],
    kept: Callable[[], Timex] = _timex.read,
    look: Callable[[str], DriveState] = state_of,
) -> list[str]:
    """Return a line each on the clock and on the drives of these folders; nothing is measured."""
    return [
        *_clock(kept),
        *(line for several in distinct(folders) for line in _drive(several, look)),
    ]


def _clock(kept: Callable[[], Timex]) -> Iterator[str]:
    try:
        kernel = kept()
    except NotAvailableError as error:
        yield f"Clock: unknown, {error}."
        return
    if kernel.is_synchronised:
        yield f"Clock: kept, off by at most {amount(kernel.maxerror_seconds, 'seconds')}."
    else:
        yield (
            "Warning: nobody keeps this host's clock (chrony, ntpd): latency between hosts and times "
            "beside other hosts' mean little."
        )


def _drive(directories: tuple[str, ...], look: Callable[[str], DriveState]) -> Iterator[str]:
    try:
        state = look(directories[0])
    except FileNotFoundError:
        yield f"Drive of {directories[0]}: not on this host."
        return
    except (OSError, ProbeError) as error:
        yield f"Drive of {directories[0]}: unknown, {error}."
        return
    yield f"Drive of {', '.join(directories)}: {state.words}."
    here = Measured(host_name(), directories, "before", 0, state=state)
    yield from (f"Warning: {warning}." for warning in warnings([here]))
