"""One file a driver: `PREFIX` begins its `driverClass`, `take(source, draft)` puts it into a plan."""
