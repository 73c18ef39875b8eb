"""The detector as a streaming query: samples in, changes, findings and their causes out. Open `job` first."""
