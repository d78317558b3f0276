"use strict";
// The page: a message, what the models suggest for it, and what that saves. Nothing here stores anything, or sends it.

const PAUSE = 1200; // milliseconds without a key before suggestions are read out
const SLICE = 8; // milliseconds of measuring at a time
const WITHOUT_SPACES = new Set(["zh", "ja"]);
const WORD = /[\p{L}\p{M}][\p{L}\p{M}'’‘ʼ`´·\u200c\u200d]*|\p{Nd}+/u;
const NOTHING = { words: [], continuation: "", replaces: 0 };

const byId = (id) => document.getElementById(id);
const length = (text) => [...text].length;
const share = (part, whole) => `${whole > 0 ? Math.round((100 * part) / whole) : 0}%`;

/** Passwords, codes and cards: nothing is suggested for them, nothing kept, nothing counted. */
function isPrivate(field) {
  return (
    field.type === "password" ||
    "private" in field.dataset ||
    /password|one-time-code|cc-/i.test(field.getAttribute("autocomplete") ?? "") ||
    field.getAttribute("inputmode") === "numeric"
  );
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** What somebody would have saved who takes every word as soon as a strip shows it: its other letters. A pick is a keystroke, and spares
 * the space after the word. Measured in slices, so that a long text does not stop the typing. */
class AttentivePerson {
  constructor(predictor, report) {
    Object.assign(this, { predictor, report, before: 0 }); // what earlier messages saved
    this.forget();
  }

  forget() {
    clearTimeout(this.later);
    this.steps = [{ text: "", saved: 0 }]; // after each word
  }

  /** The text is whole, and gone; what it would have saved counts on. */
  send(text) {
    this.read(`${text} `);
    this.before += this.steps.at(-1).saved;
  }

  read(text) {
    while (!text.startsWith(this.steps.at(-1).text)) this.steps.pop();
    clearTimeout(this.later);
    const end = performance.now() + SLICE;
    while (this.readWord(text)) {
      if (performance.now() > end) {
        this.later = setTimeout(() => this.read(text));
        return;
      }
    }
    this.report(this.before + this.steps.at(-1).saved);
  }

  /** One more word, if there is one that something follows, so that it is known to be whole. */
  readWord(text) {
    const { text: known, saved } = this.steps.at(-1);
    const found = text.slice(known.length).match(WORD);
    const start = known.length + (found?.index ?? 0);
    const end = start + (found?.[0].length ?? 0);
    if (!found || end === text.length) return false;
    const spared = this.spared(text.slice(0, start), found[0]) - (text[end] === " " ? 0 : 1);
    this.steps.push({ text: text.slice(0, end), saved: saved + Math.max(0, spared) });
    return true;
  }

  spared(before, word) {
    const letters = [...word];
    const typed = letters.findIndex((_, n) => this.predictor.predict(before + letters.slice(0, n).join("")).words.includes(word));
    return typed < 0 ? 0 : letters.length - typed;
  }
}

/** One model's strip, and its continuation where two models share the page. */
class Panel {
  constructor(model, letter, page) {
    Object.assign(this, { model, letter, predictor: model.predictor(), shown: NOTHING });
    this.buttons = [0, 1, 2].map((place) => {
      const button = element("button", { type: "button", lang: model.language });
      button.addEventListener("click", () => page.pick(this, place));
      return button;
    });
    const title = letter ? `Suggestions of model ${letter}, ${model.name}` : "Suggestions";
    this.strip = element("div", { className: "strip" }, ...this.buttons);
    this.strip.setAttribute("role", "group");
    this.strip.setAttribute("aria-label", title);
    this.host = element("div", { className: "model" }, this.strip);
    this.host.addEventListener("pointerdown", (event) => event.target.closest("button") && event.preventDefault()); // focus stays
    if (letter) this.addSideBySide(page);
  }

  addSideBySide(page) {
    this.line = element("button", { type: "button", className: "continuation", lang: this.model.language });
    this.line.addEventListener("click", () => page.accept(this));
    this.sum = element("span", { className: "sum" });
    const badge = element("span", { className: this.model.promises ? "badge" : "badge warning" }, inShort(this.model));
    this.host.prepend(element("p", { className: "name" }, element("b", {}, this.letter), ` ${this.model.name}`, badge, this.sum));
    this.host.append(this.line);
    this.person = new AttentivePerson(this.predictor, (saved) => {
      this.sum.textContent = `would have saved ${saved} (${share(saved, page.charactersSoFar())})`;
    });
  }

  /** `typed` is the half-typed word that the continuation completes. */
  show(suggestions, typed = "") {
    this.shown = suggestions;
    this.buttons.forEach((button, place) => {
      button.textContent = suggestions.words[place] ?? "";
      button.disabled = !suggestions.words[place];
    });
    if (!this.line) return;
    this.line.textContent = suggestions.continuation && `… ${typed}${suggestions.continuation.trimStart()}`;
    this.line.disabled = !suggestions.continuation;
  }

  forget() {
    this.predictor.forget();
    this.person?.forget();
    this.show(NOTHING);
  }
}

class KeyboardPage {
  constructor(models) {
    this.message = byId("message");
    this.field = this.message; // the one that keys on the screen write to
    this.language = models[0].language;
    this.made = this.saved = this.sent = 0; // keystrokes, keystrokes, characters that were sent
    this.spaceAt = -1; // the caret after a space that came with a word
    this.hushed = false; // the continuation, until the next key
    const letters = models.length > 1 ? ["A", "B"] : [""];
    this.panels = models.map((model, n) => new Panel(model, letters[n], this));
    byId("models").append(...this.panels.map(({ host }) => host));
    byId("second").hidden = models.length < 2;
    document.body.classList.toggle("two", models.length > 1);
    byId("guarantees").append(...models.map((model, n) => guaranteeOf(model, letters[n])));
    this.message.lang = this.language;
    this.listen();
    this.addKeys(models[0].vocabulary);
    this.message.focus({ preventScroll: true });
    this.refresh();
  }

  listen() {
    this.message.addEventListener("beforeinput", (event) => this.swallowSpace(event));
    this.message.addEventListener("input", () => this.typed());
    this.message.addEventListener("keydown", (event) => this.shortcut(event));
    this.message.addEventListener("click", (event) => this.onGhost(event) && this.accept(this.panels[0]));
    document.addEventListener("keydown", (event) => this.pickByNumber(event));
    document.addEventListener("selectionchange", () => this.refresh());
    document.addEventListener("focusin", ({ target }) => this.enter(target));
    byId("clear").addEventListener("click", () => this.clear());
    byId("send").addEventListener("click", () => this.send());
  }

  enter(field) {
    if (!field.matches("input, textarea")) return;
    this.field = field;
    if (isPrivate(field)) for (const panel of this.panels) panel.forget();
    this.refresh();
  }

  /** One change by one key, whoever made it. */
  typed() {
    this.made += 1;
    this.hushed = false;
    byId("status").textContent = "";
    if (this.message.selectionStart !== this.spaceAt) this.spaceAt = -1;
    this.refresh();
  }

  refresh() {
    const { value, selectionStart: caret, selectionEnd } = this.message;
    const hidden = isPrivate(this.field);
    const inWord = /^[\p{L}\p{M}\p{Nd}]/u.test(value.slice(caret));
    for (const panel of this.panels) {
      const found = caret === selectionEnd && !inWord ? panel.predictor.predict(value.slice(0, caret), hidden) : NOTHING;
      const continuation = caret === value.length && !this.hushed ? found.continuation : "";
      panel.show({ ...found, continuation }, value.slice(caret - found.replaces, caret));
      if (!hidden) panel.person?.read(value);
    }
    byId("written").textContent = value;
    byId("ghost").textContent = this.panels.length === 1 ? this.panels[0].shown.continuation : "";
    byId("forward").textContent = this.isRightToLeft() ? "←" : "→";
    this.keys?.shift(!hidden && /(?:^|[.!?…]\s+|\n)$/u.test(value.slice(0, caret)));
    this.count();
    clearTimeout(this.announcing);
    this.announcing = setTimeout(() => this.announce(), PAUSE);
  }

  count() {
    byId("made").textContent = this.made;
    byId("characters").textContent = this.charactersSoFar();
    byId("saved").textContent = `${this.saved} (${share(this.saved, this.made + this.saved)})`;
  }

  charactersSoFar() {
    return this.sent + length(this.message.value);
  }

  announce() {
    const parts = this.panels.flatMap(({ letter, shown }) => {
      const of = letter && ` of ${letter}`;
      const words = shown.words.length ? [`Suggestions${of}: ${shown.words.join(", ")}.`] : [];
      return shown.continuation ? [...words, `Continuation${of}: ${shown.continuation.trim()}.`] : words;
    });
    byId("announcement").textContent = parts.join(" ");
  }

  pick(panel, place) {
    const { words, replaces } = panel.shown;
    const { value, selectionStart: caret } = this.message;
    if (!words[place]) return;
    const space = WITHOUT_SPACES.has(this.language) || value[caret] === " " ? "" : " ";
    this.saved += length(words[place] + space) - length(value.slice(caret - replaces, caret)) - 1;
    this.spaceAt = space ? caret - replaces + words[place].length + 1 : -1;
    this.write(words[place] + space, replaces);
  }

  accept(panel) {
    const space = WITHOUT_SPACES.has(this.language) ? "" : " "; // as after a word that is picked
    const text = panel.shown.continuation + space;
    this.saved += length(text) - 1;
    this.spaceAt = space ? this.message.value.length + text.length : -1;
    this.write(text, 0);
  }

  /** Replace `replaces` characters before the caret, as a key would, so that it can be undone as one. */
  write(text, replaces) {
    const { message } = this;
    message.focus();
    message.setSelectionRange(message.selectionStart - replaces, message.selectionEnd);
    // Deprecated, and the only way that leaves Ctrl+Z whole.
    if (document.execCommand(text ? "insertText" : "delete", false, text)) return;
    message.setRangeText(text, message.selectionStart, message.selectionEnd, "end");
    message.dispatchEvent(new InputEvent("input"));
  }

  /** A space that came with a word makes way for a sign, or for a space that somebody is used to typing. */
  swallowSpace(event) {
    const signs = this.language === "fr" ? " .,)" : " .,!?;:)…";
    if (this.spaceAt !== this.message.selectionStart || !event.data || !signs.includes(event.data)) return;
    event.preventDefault();
    this.spaceAt = -1;
    this.saved -= 1;
    this.write(event.data, 1);
  }

  shortcut(event) {
    const panel = this.panels.find(({ shown }) => shown.continuation);
    const forward = this.isRightToLeft() ? "ArrowLeft" : "ArrowRight";
    const plain = !event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey && !event.isComposing;
    if (event.key === "Escape") {
      this.hushed = true;
      this.refresh();
    } else if (event.key === forward && plain && panel) {
      event.preventDefault();
      this.accept(panel);
    }
  }

  pickByNumber(event) {
    const digit = event.altKey && !event.ctrlKey && event.code.match(/^Digit([1-6])$/);
    const place = digit ? digit[1] - 1 : 0;
    const panel = this.panels[Math.floor(place / 3)];
    if (!digit || !panel?.shown.words[place % 3]) return;
    event.preventDefault();
    this.pick(panel, place % 3);
  }

  onGhost({ clientX, clientY }) {
    const inside = ({ left, right, top, bottom }) => left <= clientX && clientX <= right && top <= clientY && clientY <= bottom;
    return byId("ghost").textContent && [...byId("ghost").getClientRects()].some(inside);
  }

  isRightToLeft() {
    return getComputedStyle(this.message).direction === "rtl";
  }

  clear() {
    this.made = this.saved = this.sent = 0;
    for (const { person } of this.panels) if (person) person.before = 0;
    this.startAfresh("Cleared, and the counts with it.");
  }

  send() {
    for (const { person } of this.panels) person?.send(this.message.value);
    this.sent += length(this.message.value);
    this.startAfresh("Cleared, as if sent. It went nowhere: this page has nothing to send with.");
  }

  startAfresh(said) {
    this.message.value = "";
    this.spaceAt = -1;
    for (const panel of this.panels) panel.forget();
    this.message.focus();
    this.refresh();
    byId("status").textContent = said;
  }

  addKeys(vocabulary) {
    if (!usesLatinLetters(vocabulary)) return;
    const toggle = byId("toggle");
    this.keys = new OnScreenKeys(byId("keys"), extraLetters(vocabulary), this.language, (text) => this.press(text));
    toggle.hidden = false;
    toggle.addEventListener("click", () => this.showKeys(byId("keys").hidden));
    this.showKeys(matchMedia("(pointer: coarse)").matches);
  }

  /** With keys on the screen the system's keyboard stays away, which would cover them. */
  showKeys(shown) {
    byId("keys").hidden = !shown;
    byId("toggle").setAttribute("aria-pressed", String(shown));
    for (const field of [this.message, byId("password")]) {
      if (shown) field.setAttribute("inputmode", "none");
      else field.removeAttribute("inputmode");
    }
  }

  /** A key on the screen. */
  press(text) {
    this.field.focus();
    if (text === "Backspace") document.execCommand("delete");
    else if (this.field !== this.message) document.execCommand("insertText", false, text);
    else {
      const event = new InputEvent("beforeinput", { data: text, cancelable: true });
      if (this.message.dispatchEvent(event)) this.write(text, 0);
    }
  }
}

/** The figures of a promise, to stand beside the model's name: an ε says nothing without its δ. */
function inShort({ plain, promises }) {
  const figures = plain.join(" ").match(/ε (?:= |is )?(?:> )?[\d.,]*[\d∞](?: and δ = [\d.e-]*\d)?/)?.[0];
  const inOneLine = figures?.replace(" and", ",").replaceAll(" ", "\u00a0");
  return `${promises ? "" : "⚠ "}${inOneLine ?? (promises ? "public text" : "no guarantee")}`;
}

/** All of a warning is in sight; of a promise the figure is, and what it means one click away. */
function guaranteeOf(model, letter) {
  const title = element("h2", {}, letter ? `${letter}: ${model.name}` : model.name);
  const sentences = model.plain.map((sentence) => element("p", {}, sentence.replaceAll(" = ", "\u00a0=\u00a0")));
  const shown = model.promises ? sentences.slice(0, 1) : sentences;
  const statement = element("pre", { tabIndex: 0 }, model.statement);
  const details = element("details", {}, element("summary", {}, "Details"), ...sentences.slice(shown.length), statement);
  return element("article", { className: model.promises ? "promise" : "promise warning" }, title, ...shown, details);
}

const models = Object.values(globalThis.taciturn?.models ?? {});
const wanted = document.querySelectorAll("script[data-model]").length;
if (models.length && models.length === wanted) globalThis.keyboard = new KeyboardPage(models);
else byId("status").textContent = "A model could not be loaded. Load the page again; if that does not help, export the model anew.";
