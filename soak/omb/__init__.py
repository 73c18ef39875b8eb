"""Files of the OpenMessaging Benchmark in both directions: results in four dialects, workloads and drivers.

`soak.app` and `soak.cli` import it; it imports only `soak.clients` and `soak.core`. Open `result` first:
every dialect is converted into its `Result`. `result_file` reads and writes it, `plan_import` makes plans.
"""
