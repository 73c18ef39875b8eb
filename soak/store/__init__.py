"""What a run keeps on disk: the run folder, the journals, the findings, and the topic that joins hosts.

Every package above may import it; it computes nothing but where bytes lie and what they say. Open
`run_folder` first for the paths of a run, then `journal` for its records.
"""
