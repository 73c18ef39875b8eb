"""Pure middle of the system: plan, schedule, clock, records, audit. No IO, no clients."""
