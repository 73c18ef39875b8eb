"""What a command does: check a plan, start a run and follow it to its verdict, install units, run drills.

Only `soak.cli` imports this package; it may import every other one. `foreground` follows a run in the
foreground from its plan to its end, `lifecycle` a run whose daemons systemd starts. `plan_files` loads the
plan of either, `preflight` checks it, and `outcome` makes the report and shows it. Start reading at
`foreground`.
"""
