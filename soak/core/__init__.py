"""The pure middle of soakd: data types, schedule, audit, journal format, plan and forecast, without IO.

Every other package may import it; it imports only the standard library, numpy, pydantic, PyYAML and
hdrhistogram. Open `model` first for the data types, then `ports` for the seams that brokers, probes and
sinks implement.
"""
