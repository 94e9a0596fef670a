/** Changes: a request waits on the server until something that is shown has another version. It ends while the page is hidden. */

import { ApiError, current } from "./api.ts";
import type { Versions } from "./models.ts";

export interface Changes {
  /** Cluster or policies have changed. */
  cluster: boolean;
  /** The figures of running servers have changed. */
  servers: boolean;
  /** The console was started again. */
  restarted: boolean;
}

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15_000;

/** The difference of two versions. */
export function difference(before: Versions, now: Versions): Changes {
  const restarted = before.boot !== now.boot;
  return { cluster: restarted || before.cluster !== now.cluster, servers: restarted || before.servers !== now.servers, restarted };
}

export class Live {
  private readonly changed: (changes: Changes) => void;
  private readonly away: (away: boolean) => void;
  private known: Versions | null = null;
  private running: AbortController | null = null;
  private failures = 0;

  constructor(changed: (changes: Changes) => void, away: (away: boolean) => void) {
    this.changed = changed;
    this.away = away;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  /** Begins to wait for changes, unless that is under way. */
  start(): void {
    if (this.running || document.hidden) return;
    this.running = new AbortController();
    void this.follow(this.running.signal);
  }

  stop(): void {
    this.running?.abort();
    this.running = null;
  }

  private async follow(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const known = this.known;
      try {
        const now = await current<Versions>("versions", known ? { boot: known.boot, cluster: String(known.cluster), servers: String(known.servers) } : {}, signal);
        if (signal.aborted) return;
        this.known = now;
        if (this.failures) this.away(false);
        this.failures = 0;
        const changes = known ? difference(known, now) : null;
        if (changes && (changes.cluster || changes.servers)) this.changed(changes);
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 401) return this.stop(); // until somebody signs in
        this.failures += 1;
        if (!(error instanceof ApiError)) this.away(true); // one that answers is there
        await new Promise((resolve) => window.setTimeout(resolve, Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (this.failures - 1))));
      }
    }
  }
}
