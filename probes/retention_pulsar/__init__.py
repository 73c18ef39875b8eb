"""Retention in Pulsar: which ledgers were trimmed, when, and when bookies freed the space.

Source:   ledgers from the admin interface (`internalStats` of the run's topics), once every `period` on a
          thread of its own; the metrics page of each bookie in `bookie_urls`.
Overhead: one request a topic and one a bookie; topics with many ledgers are polled less often, at 2,500
          ledgers a second.
Caveats:  Ledgers that are created and trimmed between two polls are missed. The space freed by one trim
          cannot be separated from that freed by others: a bookie frees an entry log when all its ledgers
          are deleted, or when it compacts the log. Bytes of ledgers are counted once, freed bytes once a
          replica.

Open `probe` first; it follows `ledgers` and `bookies` by the answers of `cluster`.
"""

from probes.retention_pulsar.probe import Config, build, check_settings, preflight

__all__ = ["Config", "build", "check_settings", "preflight"]
