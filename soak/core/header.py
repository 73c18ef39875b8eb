"""The header of every payload: its producer, its sequence number, and the times at which it was due and sent.

Little-endian, 48 bytes. It carries the delay (sent minus due), so that a consumer can compute the end-to-end
latency from the intended time without the producer's record.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from soak.core.ports import Heads

MAGIC = 0x4B53  # "SK"
VERSION = 1
DTYPE = np.dtype(
    [
        ("magic", "<u2"),
        ("version", "u1"),
        ("run", "u1"),
        ("instance", "<u4"),
        ("epoch", "<u4"),
        ("boot", "<u4"),
        ("sequence", "<u8"),
        ("intended_mono_ns", "<i8"),
        ("delay_ns", "<i8"),
        ("sent_wall_ns", "<i8"),
    ]
)
SIZE = DTYPE.itemsize
MAX_SEQUENCE = 2**53
"""No producer counts so far; a message that says so is of another program, and would not fit a record."""
STAMPED = ("sequence", "intended_mono_ns", "delay_ns", "sent_wall_ns")
"""The fields that differ from message to message, 8 bytes each; they come last."""


def instance_of(run_id: str, source: str, client: int = 0) -> int:
    """Return the number of a client of a run's source, such as `produce.0@host`."""
    suffix = f"/{client}" if client else ""
    return zlib.crc32(f"{run_id}/{source}{suffix}".encode())


def run_of(run_id: str) -> int:
    """Return a number of a run, 1 to 255; two runs on one topic share it in one of 255 cases."""
    return 1 + zlib.crc32(run_id.encode()) % 255


def boot_of(boot_id: str) -> int:
    """Return a hash of the kernel's boot id, the same for all processes of one boot."""
    return zlib.crc32(boot_id.strip().encode())


def headers(count: int, instance: int, epoch: int, boot: int, run: int = 0) -> NDArray[np.void]:
    """Return `count` headers with the constant fields filled in."""
    block = np.zeros(count, dtype=DTYPE)
    block["magic"] = MAGIC
    block["version"] = VERSION
    block["run"] = run
    block["instance"] = instance
    block["epoch"] = epoch
    block["boot"] = boot
    return block


def parse(heads: Heads, run: int | None = None) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """Return one row per payload, and a mask of the payloads of this run, or of any run without `run`."""
    block = (
        heads.view(DTYPE)
        if isinstance(heads, np.ndarray)
        else np.frombuffer(b"".join(head[:SIZE].ljust(SIZE, b"\0") for head in heads), dtype=DTYPE)
    )
    is_ours = (block["magic"] == MAGIC) & (block["version"] == VERSION)
    is_ours &= block["sequence"] < MAX_SEQUENCE
    if run is not None:
        is_ours &= block["run"] == run
    return block, is_ours


def stream_name(instance: int, epoch: int, partition: int) -> str:
    """Return the key under which records hold the spans of a producer stream."""
    return f"{instance}.{epoch}.{partition}"
