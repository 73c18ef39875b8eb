"""Events in the log of a broker: segments rolled and deleted, leaders changed, threads paused.

Source:   the broker's log on this host, and further logs such as that of the garbage collector. Which lines
          are events is defined in `log_patterns/`.
Overhead: one stat a file and second, and a search of the appended text, about 8 ms a MB.
Caveats:  Starts at the end of the log. Times are those of the log, to the millisecond, on this host's clock;
          a line whose timestamp cannot be read gets the time at which it was read, up to half a second later.
          Text that a client may write into a log (topic, client id) may be part of an event, escaped. More
          than 1,000 events between two readings are counted but not recorded. If a log is rotated twice
          between two reads, the file in between is missed. Where nothing is written to a log and no file has
          its name for 20 reads, it failed: its program goes on under another name, as with JDK 8's
          `-XX:+UseGCLogFileRotation`.

Open `probe` first; it reads lines by `tail`, matches them by `patterns` and dates them by `timestamps`.
"""

from probes.broker_log.probe import Config, build, check_settings, preflight

__all__ = ["Config", "build", "check_settings", "preflight"]
