"""A Pulsar message id as one number that rises in a partition: ledger, entry, place in its batch.

Ledgers come first, so a run of offsets can be cut where a ledger ends, which is what retention deletes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soak.core.errors import BrokerError

Ints = NDArray[np.int64]

INDEX_BITS = 12
ENTRY_BITS = 24
LEDGER_BITS = 63 - ENTRY_BITS - INDEX_BITS
BLOCK_BITS = ENTRY_BITS + INDEX_BITS
MOST_IN_A_BATCH = 1 << INDEX_BITS

_LIMITS = (
    (LEDGER_BITS, "ledgers"),
    (ENTRY_BITS, "entries a ledger (managedLedgerMaxEntriesPerLedger)"),
    (INDEX_BITS, "messages a batch (batching_max_messages)"),
)


def pack(ledger: int, entry: int, index: int = 0) -> int:
    """Return the offset of one message; -1, the index of a message outside a batch, counts as 0."""
    return ledger << BLOCK_BITS | entry << INDEX_BITS | max(index, 0)


def unpack(offset: int) -> tuple[int, int, int]:
    """Return ledger, entry and index in the batch."""
    index = offset & (MOST_IN_A_BATCH - 1)
    return offset >> BLOCK_BITS, offset >> INDEX_BITS & ((1 << ENTRY_BITS) - 1), index


def pack_all(ledger: Ints, entry: Ints, index: Ints) -> Ints:
    """Return the offsets of many messages, as `pack`.

    Raises:
        BrokerError: a part does not fit into its bits.
    """
    index = np.maximum(index, 0)
    for part, (bits, what) in zip((ledger, entry, index), _LIMITS, strict=True):
        if part.size and int(part.max()) >> bits:
            raise BrokerError(
                f"an offset has room for {1 << bits} {what}, not for {part.max() + 1}"
            )
    packed: Ints = ledger << BLOCK_BITS | entry << INDEX_BITS | index
    return packed
