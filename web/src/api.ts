/** Requests to the server. A token is held for this tab only, and sent in a header: there are no cookies. */

import type { Fault, RefusalView } from "./models.ts";
import { pastTime } from "./route.ts";
import { t } from "./texts.ts";

/** The largest body that the server takes, in bytes. */
const LARGEST_BODY = 512 * 1024;
const TOKEN = "koord-policy-token";

/** The server refused a request. */
export class ApiError extends Error {
  readonly status: number;
  readonly faults: Fault[];

  constructor(status: number, message: string, faults: Fault[]) {
    super(message);
    this.status = status;
    this.faults = faults;
  }
}

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
}

async function request<T>(path: string, init: RequestInit): Promise<T> {
  const headers = new Headers(init.headers);
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  const body = (await answered(path, { ...init, headers, credentials: "omit" })) as T | RefusalView;
  if (typeof body === "object" && body !== null && "error" in body) {
    throw new ApiError(body.status, body.error, body.faults);
  }
  return body;
}

/** The body of an answer; what the browser says of a request without one is in the words of the page. */
async function answered(path: string, init: RequestInit): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(`/api/v1/${path}`, init);
  } catch (error) {
    throw init.signal?.aborted ? error : new Error(t("noAnswer"));
  }
  try {
    return await response.json();
  } catch (error) {
    throw init.signal?.aborted ? error : new Error(t("noAnswer"));
  }
}

export function get<T>(view: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const at = pastTime();
  const text = new URLSearchParams(at ? { at, ...query } : query).toString();
  return request<T>(text ? `${view}?${text}` : view, signal ? { signal } : {});
}

/** A view of now, whatever time is shown. */
export function current<T>(view: string, query: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const text = new URLSearchParams(query).toString();
  return request<T>(text ? `${view}?${text}` : view, signal ? { signal } : {});
}

export function post<T>(view: string, body: object, signal?: AbortSignal): Promise<T> {
  const text = JSON.stringify(pastTime() ? { at: pastTime(), ...body } : body);
  // The server would refuse it at every key, and the browser log each refusal as an error.
  if (text.length > LARGEST_BODY) return Promise.reject(new ApiError(413, t("tooLarge", LARGEST_BODY / 1024), []));
  const init: RequestInit = { method: "POST", body: text, headers: { "Content-Type": "application/json" } };
  if (signal) init.signal = signal;
  return request<T>(view, init);
}
