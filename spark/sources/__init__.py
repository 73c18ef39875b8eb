"""What the jobs read, as rows of one schema: `journals` of a run folder. Open `schema` first."""
