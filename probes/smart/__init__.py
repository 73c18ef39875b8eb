"""What the drives behind directories report of themselves: wear, errors, heat, collection of garbage.

Source:   smartctl, or else nvme, for each drive below the device that holds each `directory`. NVMe drives
          with the logs of the OCP Datacenter NVMe SSD specification are also asked for these, by nvme.
Overhead: one process for each drive every `period`, with OCP's logs three; a sleeping disk is not woken.
Caveats:  All need root, and have nothing about virtual drives: that is reported once. Wear is the
          manufacturer's estimate and may exceed 1. The media errors of an ATA drive are its reported
          uncorrectable errors, those of a SAS drive what it could not read, write or verify. The count of
          written bytes of an ATA drive differs by manufacturer, so it is read only where its name has the
          unit; wear likewise only where the name says what the value means. A value that is missing or not
          a number is left out. smartctl prints how long a drive throttled itself from 8.0 on, and only
          once it has.

Open `probe` first; it runs the programs of `tools` and reads OCP's logs by `ocp_logs`.
"""

from probes.smart.probe import Config, build

__all__ = ["Config", "build"]
