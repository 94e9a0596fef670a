/**
 * Drafts of the playground: one of each file, and a new one. This browser keeps them, for all its tabs.
 *
 * While another tab has changed a draft, the text of this tab is kept beside it, for this tab alone, until somebody chooses.
 * A tab that has written nothing follows the other one.
 */

const NEW = "koord-policy-draft";
const OF_FILES = `${NEW}:`;
/** Ends the key under which a tab remembers what it has written itself. */
const WRITTEN = " written";

export interface Draft {
  text: string;
  /** The content of the file that the draft began with. */
  base: string;
}

function keyOf(file: string): string {
  return file ? OF_FILES + file : NEW;
}

function decoded(raw: string | null): Draft | null {
  if (raw === null) return null;
  try {
    const found = JSON.parse(raw) as Partial<Draft> | null;
    if (typeof found?.text === "string" && typeof found.base === "string") return { text: found.text, base: found.base };
  } catch {
    // A text as it is.
  }
  return { text: raw, base: "" };
}

/** The draft of a file that the browser keeps, or the new one, whose file is empty. */
export function storedDraft(file: string): Draft | null {
  return decoded(localStorage.getItem(keyOf(file)));
}

/** The files of all kept drafts; that of the new one is empty, and the first. */
export function storedFiles(): string[] {
  const keys = Array.from({ length: localStorage.length }, (_, number) => localStorage.key(number) ?? "");
  const files = keys.filter((key) => key.startsWith(OF_FILES)).map((key) => key.slice(OF_FILES.length)).sort();
  return keys.includes(NEW) ? ["", ...files] : files;
}

export class KeptDraft {
  private readonly key: string;
  private readonly start: string;
  /** What this tab knows to be kept. */
  private known: string | null;
  private own: Draft;
  /** True if the text was written in this tab: that of another one does not replace it. */
  private mine: boolean;
  /** True while another tab has kept a text that is not that of this one. */
  conflict = false;
  /** False if the browser keeps nothing, as its place is full. */
  kept = true;

  /** `start` is the content of the file, or that of a new draft. */
  constructor(file: string, start: string) {
    this.key = keyOf(file);
    this.start = start;
    this.known = localStorage.getItem(this.key);
    const mine = sessionStorage.getItem(this.key);
    this.conflict = mine !== null && mine !== this.known;
    this.own = decoded(this.conflict ? mine : this.known) ?? { text: start, base: start };
    this.mine = this.conflict || (this.known !== null && sessionStorage.getItem(this.key + WRITTEN) === this.known);
    if (!this.conflict) sessionStorage.removeItem(this.key);
    if (!this.conflict && !this.changed) this.share(); // the file has become what the draft was
  }

  get text(): string {
    return this.own.text;
  }

  /** True if the draft differs from what it starts with. */
  get changed(): boolean {
    return this.own.text !== this.start;
  }

  /** True if the file is another one than when the draft was begun. */
  get outdated(): boolean {
    return this.changed && this.own.base !== this.start;
  }

  /** Keeps the text of this tab: for all tabs, or for this one while another has changed the draft. */
  write(text: string): void {
    if (text === this.own.text) return; // one that has been taken, or begun with
    this.mine = true;
    const base = this.changed ? this.own.base : this.start;
    this.own = { text, base: text === this.start ? this.start : base };
    if (localStorage.getItem(this.key) !== this.known) this.heard();
    else if (this.conflict) this.keep(sessionStorage, JSON.stringify(this.own));
    else this.share();
    if (!this.conflict && !this.changed) this.mine = false;
    this.remember();
  }

  /**
   * Notices what another tab has kept, and takes it unless that would replace a text of this one, or end a draft.
   * Returns true if that is news.
   */
  heard(): boolean {
    const now = localStorage.getItem(this.key);
    if (now === this.known) return false;
    this.known = now;
    const other = decoded(now);
    if (other && !this.mine) this.own = other;
    this.conflict = (other?.text ?? this.start) !== this.own.text;
    if (this.conflict) this.keep(sessionStorage, JSON.stringify(this.own));
    else sessionStorage.removeItem(this.key);
    this.mine ||= this.conflict;
    return true;
  }

  /** Ends a conflict with the text of this tab. */
  keepOwn(): void {
    this.known = localStorage.getItem(this.key);
    this.settle();
    this.share();
    this.remember();
  }

  /** Ends a conflict with the text of the other tab, which is returned. */
  takeOther(): string {
    this.known = localStorage.getItem(this.key);
    this.own = decoded(this.known) ?? { text: this.start, base: this.start };
    this.mine = false;
    this.remember();
    this.settle();
    return this.own.text;
  }

  /** Remembers for a reload that the draft is of this tab, if it is. */
  private remember(): void {
    try {
      if (this.mine && !this.conflict && this.known !== null) sessionStorage.setItem(this.key + WRITTEN, this.known);
      else sessionStorage.removeItem(this.key + WRITTEN);
    } catch {
      sessionStorage.removeItem(this.key + WRITTEN); // it is full
    }
  }

  private settle(): void {
    this.conflict = false;
    sessionStorage.removeItem(this.key);
  }

  private share(): void {
    const raw = this.raw();
    if (raw === this.known) return;
    if (this.keep(localStorage, raw)) this.known = raw;
  }

  /** What is kept of this tab's draft: nothing of one that has not been changed. */
  private raw(): string | null {
    return this.changed ? JSON.stringify(this.own) : null;
  }

  private keep(storage: Storage, raw: string | null): boolean {
    try {
      if (raw === null) storage.removeItem(this.key);
      else storage.setItem(this.key, raw);
      this.kept = true;
    } catch {
      this.kept = false;
    }
    return this.kept;
  }
}
