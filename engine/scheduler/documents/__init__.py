"""How the documents of SchedulerPlugins run: all nodes of a decision at once."""
