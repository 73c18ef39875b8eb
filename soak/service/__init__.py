"""Small pieces of the operating system that every process of a run uses: children, signals, files, systemd.

Nothing here knows of runs, brokers or measurements; it imports `soak.core` alone, and every package above may
import it. Open `children` for starting processes and `systemd` for what a service manager hears.
"""
