"""Files of the OpenMessaging Benchmark: results in four dialects, workloads and drivers, both ways."""
