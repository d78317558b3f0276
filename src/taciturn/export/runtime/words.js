"use strict";
// How text is split into the words of a model's list: data/vocabulary.py, in JavaScript. A test holds the two together.

const SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>"];
const SENTENCE_ENDS = ["<eos>", ".", "!", "?", "...", "।", "؟", "。"];

const TOKEN = new RegExp(
  [
    "[\\p{L}\\p{M}]+(?:['·\\u200c\\u200d][\\p{L}\\p{M}]+)*",
    "\\p{Nd}+",
    "\\.\\.\\.",
    "[.,!?'\":;()¿¡।،؛؟。、\\-]",
    "\\p{Extended_Pictographic}\\p{Emoji_Modifier}?(?:\\u200d\\p{Extended_Pictographic}\\p{Emoji_Modifier}?)*",
    "\\p{Regional_Indicator}\\p{Regional_Indicator}",
    "\\ue000",
  ].join("|"),
  "gu",
);
const SIGNS = new Map([
  ...[..."’‘ʼ`´"].map((sign) => [sign, "'"]),
  ...[..."“”„«»"].map((sign) => [sign, '"']),
  ...[..."–—−"].map((sign) => [sign, "-"]),
  ["…", "..."],
  ["！", "!"],
  ["？", "?"],
  ["，", ","],
  ["\ufe0f", ""], // asks for a colourful emoji
  ["\u00ad", ""], // a hyphen that is not there
  ["\u200b", ""],
]);
const ANY_SIGN = new RegExp(`[${[...SIGNS.keys()].join("")}]`, "gu");
const TURKISH = { I: "ı", İ: "i" };
const ROMANIAN = { ş: "ș", ţ: "ț", Ş: "Ș", Ţ: "Ț" };
const UNPOINTED = new Set(["ar", "fa", "he", "ur"]);
const SEGMENTED = new Set(["zh", "ja", "ko"]);
const NOT_ASCII = /[^\0-\x7f]/;

/** One spelling for what looks the same: composed letters, lower case, plain quotes and dashes. */
function normalize(text, language) {
  if (NOT_ASCII.test(text)) {
    const bounded = text.replace(/\p{M}{31,}/gu, (run) => [...run].slice(0, 30).join(""));
    text = bounded.normalize("NFC");
  }
  text = text.replace(ANY_SIGN, (sign) => SIGNS.get(sign));
  if (UNPOINTED.has(language)) text = text.replace(/[\p{Mn}ـ]/gu, "");
  else if (language === "tr") text = text.replace(/[Iİ]/g, (letter) => TURKISH[letter]);
  else if (language === "ro") text = text.replace(/[şţŞŢ]/g, (letter) => ROMANIAN[letter]);
  return casefold(text);
}

/** Python's casefold in all but a few historic scripts: to capitals and back makes ss of ß, and leaves two things to see to. */
function casefold(text) {
  if (!NOT_ASCII.test(text)) return text.toLowerCase();
  const folded = (part) => part.replaceAll("ẞ", "ß").toUpperCase().toLowerCase().replaceAll("ς", "σ");
  return text.split("ı").map(folded).join("ı"); // which would come back with a dot
}

/** A word, a number or an emoji, and not punctuation or a special sign. */
const isWord = (token) => !SPECIAL.includes(token) && /[\p{L}\p{N}\p{Extended_Pictographic}\p{Regional_Indicator}]/u.test(token);

const wordsOf = (text, language) => normalize(text, language).match(TOKEN) ?? [];

class Vocabulary {
  constructor(words, language) {
    this.words = words;
    this.language = language;
    this.ids = new Map(words.map((word, place) => [word, place]));
    this.longest = words.slice(SPECIAL.length).reduce((longest, word) => Math.max(longest, [...word].length), 1);
  }

  encode(text) {
    return this.split(text).map((word) => this.ids.get(word) ?? UNKNOWN);
  }

  split(text) {
    const words = wordsOf(text, this.language);
    return SEGMENTED.has(this.language) ? words.flatMap((word) => this.segments(word)) : words;
  }

  /** Of words that are written together, the longest known one again and again. */
  segments(word) {
    const letters = [...word];
    const segments = [];
    for (let start = 0; start < letters.length; start += [...segments.at(-1)].length) {
      let end = Math.min(letters.length, start + this.longest);
      while (end > start + 1 && !this.ids.has(letters.slice(start, end).join(""))) end--;
      segments.push(letters.slice(start, end).join(""));
    }
    return segments;
  }
}
