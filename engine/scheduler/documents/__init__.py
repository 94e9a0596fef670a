"""Running of SchedulerPlugin documents: all nodes of a decision at once."""
