"""The report of a run: its page, its sections and summary.json. Open `job` first."""
