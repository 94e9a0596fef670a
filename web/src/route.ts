/** The address of a view: everything that is shown has one, after the `#`. */

export interface Route {
  view: string;
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: path || "map", query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(view: string, query: Record<string, string> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `#/${view}?${text}` : `#/${view}`;
}
