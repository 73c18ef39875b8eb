"""What is kept on disk: run folder, journals, findings."""
