/** The address of a view: everything that is shown has one, after the `#`. */

export interface Route {
  view: string;
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: path || "map", query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The views of the cluster, which may be of a time of the recording: `at` in their addresses. */
export const OF_TIMES: ReadonlySet<string> = new Set(["overview", "map", "pod", "policies", "playground"]);
let past = "";

/** The time that views are of, RFC 3339; empty for now. */
export function pastTime(): string {
  return past;
}

/** Links to views of the cluster lead to the same time from now on. */
export function setPast(at: string): void {
  past = at;
}

export function link(view: string, query: Record<string, string> = {}): string {
  const given = Object.entries(past && OF_TIMES.has(view) ? { at: past, ...query } : query).filter(([, value]) => value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `#/${view}?${text}` : `#/${view}`;
}
