"""What a command does: check a plan, start a run and follow it to its verdict, install units, run drills.

Only `soak.cli` imports this package; it may import every other one. `foreground` follows a run in the
foreground from its plan to its report, `lifecycle` a run whose daemons systemd starts, `preflight` holds the
checks before either. Start reading at `foreground`.
"""
