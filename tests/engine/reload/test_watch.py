from __future__ import annotations

import threading
from pathlib import Path

from koordpolicy.engine.reload.watch import FileEvents


def test_events_come_again_after_the_thread_that_reads_them_has_ended(tmp_path: Path) -> None:
    changed = threading.Event()
    events = FileEvents(changed.set)
    try:
        events.watch([str(tmp_path)])
        assert events.working
        for emitter in events._observer.emitters:
            emitter.stop()
            emitter.join()
        assert not events.working
        events.watch([str(tmp_path)])
        assert events.working
        (tmp_path / "a.yaml").write_text("x")
        assert changed.wait(20)
    finally:
        events.close()
