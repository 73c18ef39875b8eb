"""Where Spark runs: the session that the jobs share."""
