"""What every daemon of a run opens: the run folder, the one-second grid, and the recorder of its journal.

Daemons (load, conductor, sampling, shipping, alerting, supervisor), the lab and the application import it.
Open `context` first.
"""
