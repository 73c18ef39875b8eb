"""The processes of a run; one starts another only as a process."""
