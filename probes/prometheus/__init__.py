"""Metrics of brokers and exporters, under names that stay the same whatever exports them.

Source:   a page in Prometheus' text format, or the scraped points of a Prometheus server. Which metrics are
          read, and how they are spelled there, is defined in `name_maps/`.
Overhead: one request a reading and target, less often if it takes more than a quarter of the time to answer;
          0.2 ms for a page of 1,800 lines.
Caveats:  Fetched half a second before the reading. Counters become rates: the first reading has none, and
          there is none across a restart or when a series of a sum is missing. A page that its exporter makes
          every few seconds has values when it changed, once that is known of it. Quantiles computed by the
          exporter lag as its window does. A page without a content length that was cut at the end of a line
          cannot be distinguished from a complete one. Redirects to another host are refused, because that
          host would receive the password.

Open `probe` first; it reads `sources`, and turns their series into samples by `name_map` and `aggregation`.
"""

from probes.prometheus.probe import Config, build, check_settings, preflight

__all__ = ["Config", "build", "check_settings", "preflight"]
