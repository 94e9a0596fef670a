/** The editor: CodeMirror with YAML, findings and completion. Loaded only by views that show documents. */

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionSource } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { type Diagnostic, lintGutter, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorSelection, EditorState, type Extension, Prec, RangeSet, StateEffect, StateField } from "@codemirror/state";
import { EditorView, GutterMarker, drawSelection, gutter, highlightActiveLine, highlightActiveLineGutter, highlightSpecialChars, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { offsetAt } from "./format.ts";
import type { CoverageLine, Fault, TextRange } from "./models.ts";
import { HIDDEN, visible } from "./visible.ts";

export interface EditorOptions {
  readOnly?: boolean;
  label: string;
  complete?: CompletionSource;
  /** Returns what is at an offset, as text. */
  describe?: (text: string, offset: number) => Promise<string>;
  changed?: (text: string) => void;
  moved?: (offset: number) => void;
  saved?: () => void;
  /** Called for F2, with the offset of the cursor. */
  rename?: (offset: number) => void;
  /** Returns the text beside a line whose outcomes tests have shown in part; for an editor with such a margin. */
  covered?: (line: CoverageLine) => string;
}

export interface Editor {
  text(): string;
  replace(text: string): void;
  mark(faults: readonly Fault[]): void;
  /** Shows the coverage of lines in the margin, until it is shown anew. */
  cover(lines: readonly CoverageLine[]): void;
  /** Replaces parts, whose offsets are in code points, as one step of the history. */
  replaceAll(parts: readonly TextRange[], text: string): void;
  reveal(line: number, column: number, focus?: boolean): void;
  offset(): number;
  focus(): void;
  close(): void;
}

/** The colours follow the page's theme, as they are variables of its style sheet. */
const COLOURS = HighlightStyle.define([
  { tag: tags.definition(tags.propertyName), color: "var(--accent)" }, { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" }, { tag: tags.string, color: "var(--good)" },
  { tag: tags.special(tags.string), color: "var(--good)" }, { tag: tags.number, color: "var(--warn)" }, { tag: tags.bool, color: "var(--warn)" },
  { tag: tags.meta, color: "var(--quiet)" },
]);
const THEME = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--back)", fontSize: ".86rem" },
  ".cm-content": { fontFamily: "ui-monospace, 'DejaVu Sans Mono', Consolas, monospace", caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--quiet)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--accent) 9%, transparent)" },
  ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--text)", border: "1px solid var(--line)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--accent-text)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 30%, transparent) !important" },
});
/** After Escape Tab leaves the editor, however long somebody takes to press it: until another key, or the focus is elsewhere. */
const LEAVING = Prec.lowest(EditorView.domEventHandlers({
  keydown: (event, view) => {
    if (event.key === "Escape") queueMicrotask(() => view.setTabFocusMode(Infinity)); // the editor's own handler permits two seconds
    return false;
  },
  blur: (_, view) => { view.setTabFocusMode(false); },
}));
const MARGIN = 60;
const SEVERITIES: Record<string, Diagnostic["severity"]> = { error: "error", warning: "warning", note: "info" };

export function openEditor(parent: HTMLElement, text: string, options: EditorOptions): Editor {
  const nonce = document.querySelector<HTMLMetaElement>("meta[name=csp-nonce]")?.content ?? "";
  const editing = options.readOnly
    ? [EditorState.readOnly.of(true)]
    : [history(), closeBrackets(), indentOnInput(), autocompletion(options.complete ? { override: [options.complete] } : {}), keymap.of([indentWithTab])];
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: text,
      extensions: [
        EditorView.cspNonce.of(nonce), lineNumbers(), highlightActiveLine(), highlightActiveLineGutter(), drawSelection(), highlightSelectionMatches(),
        highlightSpecialChars({ specialChars: HIDDEN }), yaml(), syntaxHighlighting(COLOURS), THEME, lintGutter(), editing, EditorView.contentAttributes.of({ "aria-label": options.label }),
        keymap.of([
          { key: "Mod-s", preventDefault: true, run: () => { options.saved?.(); return Boolean(options.saved); } },
          { key: "F2", run: (at) => { options.rename?.(at.state.selection.main.head); return Boolean(options.rename); } }]),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...completionKeymap]),
        LEAVING, options.describe ? hovering(options.describe) : [], options.covered ? margin(options.covered) : [],
        EditorView.updateListener.of((update) => {
          if (update.docChanged) options.changed?.(update.state.doc.toString());
          else if (update.selectionSet) options.moved?.(update.state.selection.main.head);
        }),
      ],
    }),
  });
  view.scrollDOM.tabIndex = 0;
  return {
    text: () => view.state.doc.toString(),
    replace: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    mark: (faults) => view.dispatch(setDiagnostics(view.state, diagnostics(view.state.doc.toString(), faults))),
    cover: (lines) => view.dispatch({ effects: COVER.of(lines) }),
    replaceAll: (parts, next) => {
      const code = Array.from(view.state.doc.toString());
      const units = (offset: number): number => code.slice(0, offset).join("").length;
      view.dispatch({ changes: parts.map((each) => ({ from: units(each.start), to: units(each.end), insert: next })) });
    },
    reveal: (line, column, focus = true) => {
      const place = Math.min(offsetAt(view.state.doc.toString(), Math.max(line, 1), column), view.state.doc.length);
      if (focus) {
        view.dispatch({ selection: EditorSelection.cursor(place), effects: EditorView.scrollIntoView(place, { y: "center" }) });
        view.focus();
      } else { // only the editor scrolls, not the page
        view.dispatch({ selection: EditorSelection.cursor(place) });
        view.scrollDOM.scrollTop = view.lineBlockAt(place).top - MARGIN;
      }
    },
    offset: () => view.state.selection.main.head,
    focus: () => view.focus(),
    close: () => view.destroy(),
  };
}

const COVER = StateEffect.define<readonly CoverageLine[]>();

class CoverageMark extends GutterMarker {
  private readonly line: CoverageLine;
  private readonly text: string;

  constructor(line: CoverageLine, text: string) {
    super();
    this.line = line;
    this.text = text;
  }

  override eq(other: CoverageMark): boolean {
    return this.line === other.line;
  }

  override toDOM(): HTMLElement {
    const dom = document.createElement("span");
    const { seen, goals } = this.line;
    dom.className = seen === goals ? "good" : seen ? "warn" : "bad";
    dom.textContent = seen === goals ? "✓" : seen ? "◐" : "○";
    dom.title = visible([this.text, ...this.line.missed].join("\n"));
    return dom;
  }
}

/** A margin with the coverage of lines, which moves with them. */
function margin(covered: (line: CoverageLine) => string): Extension {
  const marks = StateField.define<RangeSet<GutterMarker>>({
    create: () => RangeSet.empty,
    update: (before, transaction) => {
      let found = before.map(transaction.changes);
      for (const effect of transaction.effects) {
        if (!effect.is(COVER)) continue;
        const lines = effect.value.filter((each) => each.line <= transaction.state.doc.lines);
        found = RangeSet.of(lines.map((each) => new CoverageMark(each, covered(each)).range(transaction.state.doc.line(each.line).from)), true);
      }
      return found;
    },
  });
  return [marks, gutter({ class: "cm-coverage", markers: (view) => view.state.field(marks) })];
}

function hovering(describe: (text: string, offset: number) => Promise<string>) {
  return hoverTooltip(async (view, place) => {
    const text = await describe(view.state.doc.toString(), place);
    if (!text) return null;
    return { pos: place, above: true, create: () => {
      const dom = document.createElement("div");
      dom.className = "hover";
      dom.textContent = visible(text);
      return { dom };
    } };
  });
}

function diagnostics(text: string, faults: readonly Fault[]): Diagnostic[] {
  return faults.filter((fault) => fault.line > 0).map((fault) => {
    const from = offsetAt(text, fault.line, fault.column);
    const to = Math.max(from, offsetAt(text, fault.endLine, fault.endColumn));
    return { from, to: Math.min(to, text.length), severity: SEVERITIES[fault.severity] ?? "info",
      message: visible([fault.message, fault.help].filter(Boolean).join("\n")), source: fault.code };
  }).sort((a, b) => a.from - b.from);
}
