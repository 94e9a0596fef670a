from __future__ import annotations

import threading
from pathlib import Path

from koordpolicy.engine.reload.watch import Hints


def test_events_come_again_after_the_thread_that_reads_them_has_ended(tmp_path: Path) -> None:
    changed = threading.Event()
    hints = Hints(changed.set)
    try:
        hints.watch([str(tmp_path)])
        assert hints.working
        for emitter in hints._observer.emitters:
            emitter.stop()
            emitter.join()
        assert not hints.working
        hints.watch([str(tmp_path)])
        assert hints.working
        (tmp_path / "a.yaml").write_text("x")
        assert changed.wait(20)
    finally:
        hints.close()
