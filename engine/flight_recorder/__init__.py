"""The flight recorder: records what a scheduler saw and decided, and replays it under other policies."""
