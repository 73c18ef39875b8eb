"""How good the detectors are: false alarms, delays, injected steps, labelled traces, speed."""
