/** Work of the server in the background: how far it is, a button that cancels it, and its result. */

import { get, post } from "./api.ts";
import { enable, h } from "./dom.ts";
import type { Page } from "./page.ts";
import { whole } from "./paint.ts";
import { t } from "./texts.ts";
import { visible } from "./visible.ts";

const POLL = 400;
const ENDS = ["done", "failed", "cancelled"];

/** What all views of such work have. */
export interface JobView { number: number; phase: string; done: number; of: number }

export interface JobOptions<V extends JobView> {
  /** The requests for its state and to cancel it. */
  state: string;
  cancel: string;
  /** How far it is, in words. */
  said: (view: V) => string;
}

/** A bar of progress, which is hidden while nothing is done. */
export class JobBar<V extends JobView> {
  readonly element: HTMLElement;
  private readonly page: Page;
  private readonly options: JobOptions<V>;
  private readonly bar = h("progress", { max: 1, value: 0, "aria-label": t("progress") });
  private readonly said = h("span", { role: "status", class: "quiet" });
  private readonly refused = h("span", { role: "alert", class: "bad" });
  private number = 0;

  constructor(page: Page, options: JobOptions<V>) {
    this.page = page;
    this.options = options;
    this.element = whole(h("div", { class: "job", hidden: true }, this.bar, " ", this.said, " ", this.refused, " ",
      h("button", { type: "button", onclick: () => void this.cancel() }, t("cancel"))));
  }

  private async cancel(): Promise<void> {
    try {
      await post(this.options.cancel, { number: this.number });
      this.refused.textContent = "";
    } catch (error) {
      this.refused.textContent = visible(t("failed", error instanceof Error ? error.message : String(error)));
    }
  }

  /** Starts the work; returns its view once it has ended, or null if the page was left before. Its button takes no click meanwhile. */
  async run(start: () => Promise<V>, button: HTMLButtonElement): Promise<V | null> {
    enable(button, false);
    try {
      let view = await start();
      this.number = view.number;
      this.element.hidden = ENDS.includes(view.phase);
      while (this.page.current && !ENDS.includes(view.phase)) {
        this.bar.max = Math.max(view.of, 1);
        this.bar.value = view.done;
        this.said.textContent = this.options.said(view);
        await new Promise((resolve) => window.setTimeout(resolve, POLL));
        view = await get<V>(this.options.state, { number: String(view.number) });
      }
      return this.page.current ? view : null;
    } finally {
      if (this.element.contains(document.activeElement)) button.focus(); // what has the focus is hidden
      this.element.hidden = true;
      this.said.textContent = this.refused.textContent = "";
      enable(button, true);
    }
  }
}
