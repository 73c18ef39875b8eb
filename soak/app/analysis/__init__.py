"""Analysis of recorded series: files of CSV, results of the OpenMessaging Benchmark, and run folders.

Only `soak.cli` imports this package. Start reading at `detect`; `series_files` reads the CSV files.
"""
