"""The replay of a recording: pods arrive at their recorded times, wait, run, are evicted, and leave, in virtual
time.
"""
