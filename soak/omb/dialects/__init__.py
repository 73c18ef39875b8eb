"""One file a dialect: `PROFILE` says what it writes, `recognises` tells its result files from the others."""
