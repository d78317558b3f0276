"use strict";
// Keys on the screen, for languages that are written in Latin letters.

const LETTERS = ["qwertyuiop", "asdfghjkl", "⇧zxcvbnm⌫", "⇄', .?⏎"];
const NUMBERS = ["1234567890", "@#&%+=/*_$", '-:;()"!⌫', "⇄', .?⏎"];
const KEY_NAMES = { "⇧": "Shift", "⌫": "Backspace", "⇄": "Letters or numbers", "⏎": "New line", " ": "Space" };
const WRITTEN = { "⌫": "Backspace", "⏎": "\n" };
const MOST_EXTRA = 10; // keys in a row
const [HOLD, REPEAT] = [450, 70]; // milliseconds until a key that is held down repeats, and between repetitions

/** Whether most of a model's frequent words begin with a Latin letter. */
function usesLatinLetters({ words }) {
  const frequent = words.filter((word) => /\p{L}/u.test(word)).slice(0, 300);
  return frequent.filter((word) => /^\p{Script=Latin}/u.test(word)).length > frequent.length / 2;
}

/** The letters besides a to z that a language cannot do without: one in a thousand letters of its frequent words, or more. */
function extraLetters({ words }) {
  const letters = [...words.slice(0, 2000).join("")].filter((letter) => /\p{Script=Latin}/u.test(letter));
  const counts = new Map();
  for (const letter of letters) counts.set(letter, (counts.get(letter) ?? 0) + 1);
  const extra = [...counts.keys()].filter((letter) => !/[a-z]/.test(letter) && counts.get(letter) > letters.length / 1000);
  return extra.sort((one, other) => counts.get(other) - counts.get(one)).slice(0, MOST_EXTRA).sort().join("");
}

class OnScreenKeys {
  /** Fill `host` with keys. `press` gets what a key writes, or "Backspace". */
  constructor(host, extra, language, press) {
    Object.assign(this, { host, language, press, shifted: false, numbers: false });
    this.letters = extra ? [extra, ...LETTERS] : LETTERS;
    host.addEventListener("pointerdown", (event) => this.hold(event));
    for (const end of ["pointerup", "pointercancel", "pointerleave"]) host.addEventListener(end, () => clearTimeout(this.holding));
    host.addEventListener("click", ({ target }) => target.dataset.key && this.tap(target.dataset.key));
    this.lay();
  }

  lay() {
    const rows = this.numbers ? NUMBERS : this.letters;
    this.host.replaceChildren(
      ...rows.map((row) => {
        const line = document.createElement("div");
        line.append(...[...row].map((sign) => this.key(sign)));
        return line;
      }),
    );
    this.shift(this.shifted);
  }

  key(sign) {
    const key = document.createElement("button");
    key.type = "button";
    key.dataset.key = sign;
    key.textContent = { "⇄": this.numbers ? "abc" : "123", " ": "space" }[sign] ?? sign;
    if (sign in KEY_NAMES) key.setAttribute("aria-label", KEY_NAMES[sign]);
    return key;
  }

  hold(event) {
    event.preventDefault(); // the text field keeps the focus
    if (event.target.dataset.key !== "⌫") return;
    const again = () => {
      this.press("Backspace");
      this.holding = setTimeout(again, REPEAT);
    };
    this.holding = setTimeout(again, HOLD);
  }

  tap(sign) {
    if (sign === "⇧") this.shift(!this.shifted);
    else if (sign === "⇄") {
      this.numbers = !this.numbers;
      this.lay();
    } else this.press(WRITTEN[sign] ?? (this.shifted ? this.capital(sign) : sign));
  }

  shift(shifted) {
    this.shifted = shifted;
    for (const key of this.host.querySelectorAll("button")) {
      const sign = key.dataset.key;
      if (/^\p{L}$/u.test(sign)) key.textContent = shifted ? this.capital(sign) : sign;
      if (sign === "⇧") key.setAttribute("aria-pressed", String(shifted));
    }
  }

  capital(letter) {
    const capital = letter.toLocaleUpperCase(this.language);
    return capital.length > 1 ? letter : capital; // «ß» has none that one key could write
  }
}
