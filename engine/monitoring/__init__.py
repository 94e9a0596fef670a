"""Running servers seen from outside: requests to them, their figures over time, and alerts."""
