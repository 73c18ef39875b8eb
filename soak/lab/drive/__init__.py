"""A block device in memory whose faults can be set while a broker writes to it; it needs root.

nbdkit serves the device through a plug-in of ours; a keeper process mounts it and removes it whatever
happens. `soak.lab.lab` starts drives and `soak.lab.faults` sets their faults. Open `drive.py` first.
"""
