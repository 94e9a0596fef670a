"""The replay of a recording: pods come when they came, wait, run, are evicted, and leave, in virtual time."""
