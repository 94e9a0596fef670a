"""An executor of binding cycles for tests: jobs are done when the test says so."""

from __future__ import annotations

from collections import deque

from koordpolicy.engine.scheduler.cycle.executor import Job


class ManualExecutor:
    """Does jobs when the test says so, in any order it likes."""

    inline = False

    def __init__(self):
        self.jobs, self._done, self.abandoned = [], deque(), []

    def submit(self, call):
        self.jobs.append(Job(call))
        return self.jobs[-1]

    def finish(self, which=0):
        job = self.jobs.pop(which)
        job.result = job.call()
        self._done.append(job)

    def completed(self):
        while self._done:
            yield self._done.popleft()

    def abandon(self, job):
        self.abandoned.append(job)
        return True

    def close(self):
        pass
