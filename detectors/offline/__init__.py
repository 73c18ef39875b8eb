"""Find the steps of complete series: propose cuts, test each against the noise of its series, date it.

`soak detect`, the report of a run, calibration and `soak omb analyse` call it with the same constants, so the
same numbers have the same change points everywhere; it imports only `detectors.minimum_effect` and
`soak.core`. Open `steps` first.
"""
