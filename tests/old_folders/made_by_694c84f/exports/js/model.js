/*
 * Taciturn keyboard model «private»
 * This model learned from the text of about 50 people with differential privacy: ε = 0.72 and δ =
 * 0.0004 for each person, with everything they wrote.
 * That is a strong promise: without any one of them the model would be much the same, and it can
 * hardly repeat what only one person wrote.
 * Ledger row: 438c8ae31929f03e76c85d0b9e1fad6835dd9ff169f71ae5bbff1f6d25ddf325
 */
(function () {
"use strict";
// Word models in plain JavaScript. export/javascript.py puts this file, words.js and predictor.js into every model file.
// Both classes are a `core.WordModel`: a state is never changed, only replaced.

const [UNKNOWN, BEGIN, END] = [1, 2, 3]; // as in core.py

/** An array of numbers from base64. */
function unpacked(base64, Numbers) {
  const characters = atob(base64);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return new Numbers(bytes.buffer);
}

/** A matrix in bytes, with a scale for each output (export/quantised.py). */
class Int8Matrix {
  constructor({ values, scales }) {
    this.values = unpacked(values, Int8Array);
    this.scales = unpacked(scales, Float32Array);
    this.outputs = this.scales.length;
    this.inputs = this.values.length / this.outputs;
  }

  row(place) {
    const row = new Float32Array(this.inputs);
    for (let i = 0; i < row.length; i++) row[i] = this.values[place * row.length + i] * this.scales[place];
    return row;
  }

  /** The product with a vector, plus a bias where there is one. Four rows at a time: most of a keystroke's time is spent here. */
  times(vector, bias = null) {
    const { values, scales, inputs, outputs } = this;
    const product = bias ? Float32Array.from(bias) : new Float32Array(outputs);
    let output = 0;
    for (; output + 4 <= outputs; output += 4) {
      const [first, second] = [output * inputs, (output + 1) * inputs];
      const [third, fourth] = [second + inputs, second + 2 * inputs];
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let i = 0; i < inputs; i++) {
        const x = vector[i];
        a += values[first + i] * x;
        b += values[second + i] * x;
        c += values[third + i] * x;
        d += values[fourth + i] * x;
      }
      product[output] += a * scales[output];
      product[output + 1] += b * scales[output + 1];
      product[output + 2] += c * scales[output + 2];
      product[output + 3] += d * scales[output + 3];
    }
    for (; output < outputs; output++) {
      let sum = 0;
      for (let i = 0; i < inputs; i++) sum += values[output * inputs + i] * vector[i];
      product[output] += sum * scales[output];
    }
    return product;
  }
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

// One unit of each kind of cell: from what the word brings to each gate (x), what is fed back to it (r) and the carry, the output and
// the next carry. Gates come in the order of models/cells.py.
const CELLS = {
  lstm(x, r, units, unit, carry) {
    const gate = (n) => x[n * units + unit] + r[n * units + unit];
    const next = sigmoid(gate(1) + 1) * carry + sigmoid(gate(0)) * Math.tanh(gate(2));
    return [sigmoid(gate(3)) * Math.tanh(next), next];
  },
  cifg(x, r, units, unit, carry) {
    const gate = (n) => x[n * units + unit] + r[n * units + unit];
    const forget = sigmoid(gate(0) + 1);
    const next = forget * carry + (1 - forget) * Math.tanh(gate(1));
    return [sigmoid(gate(2)) * Math.tanh(next), next];
  },
  gru(x, r, units, unit, carry) {
    const [update, reset, candidate] = [unit, units + unit, 2 * units + unit];
    const kept = sigmoid(x[update] + r[update]);
    const fresh = Math.tanh(x[candidate] + sigmoid(x[reset] + r[reset]) * r[candidate]);
    const next = (1 - kept) * fresh + kept * carry;
    return [next, next];
  },
};

/** An LSTM, a CIFG or a GRU: the formulas at the top of models/stepping.py. */
class RecurrentModel {
  constructor({ cell, weights, restarts }) {
    const matrix = (name) => weights[name] && new Int8Matrix(weights[name]);
    this.cell = CELLS[cell];
    this.words = matrix("words");
    this.embedding = matrix("embedding") ?? this.words; // left out where they are tied
    this.wordBias = unpacked(weights.word_bias, Float32Array);
    this.input = matrix("input");
    this.gateBias = unpacked(weights.gate_bias, Float32Array);
    this.recurrent = matrix("recurrent");
    this.projection = matrix("projection");
    this.toContext = matrix("to_context");
    this.restarts = new Set(restarts);
    this.vocabulary = this.words.outputs;
    const units = (this.projection ?? this.toContext).inputs;
    const zero = { fedBack: new Float32Array(this.recurrent.inputs), carry: new Float32Array(units) };
    this.first = this.step(zero, BEGIN);
  }

  start() {
    return this.first;
  }

  read(state, word) {
    return this.restarts.has(word) ? this.first : this.step(state, word);
  }

  /** The same array each time it is asked for one state: to be read only. */
  scores(state) {
    // Made when they are first wanted: in a text that is pasted, few of them are.
    state.scores ??= logSoftmax(this.words.times(this.toContext ? this.toContext.times(state.fedBack) : state.fedBack, this.wordBias));
    return state.scores;
  }

  step({ fedBack, carry }, word) {
    const x = this.input.times(this.embedding.row(word), this.gateBias);
    const r = this.recurrent.times(fedBack);
    const output = new Float32Array(carry.length);
    const next = new Float32Array(carry.length);
    for (let unit = 0; unit < carry.length; unit++) {
      [output[unit], next[unit]] = this.cell(x, r, carry.length, unit, carry[unit]);
    }
    return { fedBack: this.projection ? this.projection.times(output) : output, carry: next, scores: null };
  }
}

function logSoftmax(logits) {
  let largest = -Infinity;
  for (const logit of logits) largest = Math.max(largest, logit);
  let sum = 0;
  for (const logit of logits) sum += Math.exp(logit - largest);
  const whole = largest + Math.log(sum);
  return logits.map((logit) => logit - whole);
}

/** A back-off n-gram model: models/ngram.py. A state is the places of the last 1, 2, … words as n-grams; −1 for what is not there. */
class NGramModel {
  /** The n-grams that follow place i of the level before stand at starts[i] … starts[i + 1] of their level, sorted by word. */
  constructor({ levels, short }) {
    this.levels = levels.map((level) => ({
      probability: unpacked(level.probability, Float32Array),
      backoff: unpacked(level.backoff, Float32Array),
      words: unpacked(level.words, short ? Uint16Array : Uint32Array),
      starts: unpacked(level.starts, Uint32Array),
    }));
    this.vocabulary = this.levels[0].probability.length;
  }

  start() {
    return [BEGIN].slice(0, this.levels.length - 1);
  }

  read(state, word) {
    if (word === END) return this.start();
    const longer = this.levels.slice(1, -1).map((level, n) => follower(level, state[n] ?? -1, word));
    return [word, ...longer].slice(0, this.levels.length - 1);
  }

  scores(state) {
    const scores = this.levels[0].probability.slice();
    state.forEach((place, n) => {
      if (place < 0) return;
      const weight = this.levels[n].backoff[place];
      for (let word = 0; word < scores.length; word++) scores[word] += weight;
      const { starts, words, probability } = this.levels[n + 1];
      for (let i = starts[place]; i < starts[place + 1]; i++) scores[words[i]] = probability[i];
    });
    return scores;
  }
}

/** The place of the n-gram that a word makes of a context, or −1. */
function follower({ starts, words }, place, word) {
  if (place < 0) return -1;
  let [low, high] = [starts[place], starts[place + 1]];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (words[middle] < word) low = middle + 1;
    else high = middle;
  }
  return low < starts[place + 1] && words[low] === word ? low : -1;
}

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

"use strict";
// What a keyboard asks at every keystroke: keyboard/predictor.py, in JavaScript. A test compares the two.
// Lengths and places here are those of JavaScript's strings, as text fields count them.

const PLACES = 3; // of the strip
const COMPOSED_WORDS = 5; // in a continuation, at most
const LEAST_COMPOSED = 4; // letters that a continuation must save to be worth showing
const KEPT = 64; // texts whose state is kept
const FAR_BACK = 500; // characters that are read of an unknown (pasted) text
const LONGEST_WORD = 100; // characters; anything longer is not a half-typed word
const UNKNOWN_WORDS = Math.log(1e5); // the share of one word outside the list in all of them, as a logarithm

const HALF_TYPED = /(?:[\p{L}\p{M}][\p{L}\p{M}'’‘ʼ`´·\u200c\u200d]*|\p{Nd}+)$/u;
const NO_SPACES = new Set(["zh", "ja", "ko"]); // languages in which a word's beginning cannot be told from a word
const OPENING = "([{¿¡«“‘„"; // no space follows them
const SPACE = /[\t-\r\x1c-\x20\x85\p{Z}]/u; // Python's, so that texts are read in the same parts
const NOTHING = Object.freeze({ words: Object.freeze([]), continuation: "", replaces: 0 });

class Predictor {
  /** `threshold` is the probability that a continuation must have. Blocked words are never suggested, whoever trained the model. */
  constructor(model, vocabulary, blocked = [], threshold = 0.5) {
    if (model.vocabulary !== vocabulary.words.length) {
      throw new Error(`the model knows ${model.vocabulary} words, and its word list has ${vocabulary.words.length}`);
    }
    Object.assign(this, { model, vocabulary, threshold });
    this.blocked = new Set(blocked.map((word) => normalize(word, vocabulary.language).trim()).filter(Boolean));
    // No special tokens, and no punctuation, which is typed faster than picked.
    const words = vocabulary.words.map((_, place) => place).filter((place) => isWord(vocabulary.words[place]));
    this.all = new Alphabet(words, vocabulary);
    this.alphabet = new Alphabet(words.filter((place) => !this.blocked.has(vocabulary.words[place])), vocabulary);
    this.suggestible = new Set(this.alphabet.places);
    this.states = new Map();
    this.rests = new Map();
  }

  /** What to show for the text before the caret. Nothing is shown for, and nothing kept of, a private field. */
  predict(text, isPrivate = false) {
    if (isPrivate) return NOTHING;
    const { done, typed, prefix, state, scores } = this.expecting(text);
    const composed = this.compose(scores, prefix, state, this.threshold, done);
    return {
      words: this.candidates(scores, prefix).map((place) => this.written(place, done, typed)),
      continuation: this.continuation(composed, done, typed, prefix),
      replaces: typed.length,
    };
  }

  /** Keep nothing of what was typed: a message was sent, or a field left. */
  forget() {
    this.states.clear();
    this.rests.clear();
  }

  /** What the model makes of a text and of the word that is being typed at its end. */
  expecting(text) {
    const [done, typed] = this.halfTyped(text);
    const state = this.state(done);
    return { done, typed, prefix: normalize(typed, this.vocabulary.language), state, scores: this.model.scores(state) };
  }

  /** The likeliest words that begin with the prefix and go on after it. */
  candidates(scores, prefix = "", count = PLACES) {
    const best = [];
    for (const place of this.alphabet.after(prefix)) {
      const better = (one) => scores[one] > scores[place] || (scores[one] === scores[place] && one < place);
      if (scores[place] === -Infinity || (best.length === count && better(best[count - 1]))) continue;
      const worse = best.findIndex((one) => !better(one));
      best.splice(worse < 0 ? best.length : worse, 0, place);
      best.length = Math.min(best.length, count);
    }
    return best;
  }

  /** The likeliest way to go on, word by word, as long as its probability is at least the threshold. */
  compose(scores, prefix, state, threshold, key) {
    const [first, probability] = this.firstWord(scores, prefix);
    if (probability < threshold) return { words: [], probabilities: [] };
    const rest = this.rest(state, first, threshold, key);
    const probabilities = rest.probabilities.map((one) => probability * one).filter((one) => one >= threshold);
    return { words: rest.words.slice(0, probabilities.length), probabilities };
  }

  /** The likeliest word with this beginning (which may be all of it), and how likely it is once the beginning is typed. */
  firstWord(scores, prefix) {
    const places = this.alphabet.beginningWith(prefix);
    if (!places.length) return [UNKNOWN, 0];
    let best = places[0];
    for (const place of places) if (scores[place] > scores[best]) best = place;
    const probability = Math.exp(scores[best]);
    if (!prefix) return [best, probability];
    // Blocked words may be meant too, and words outside the list, which are assumed to begin like those in it.
    const meant = this.all.beginningWith(prefix);
    let whole = (Math.exp(scores[UNKNOWN]) * meant.length) / this.all.places.length;
    for (const place of meant) whole += Math.exp(scores[place]);
    return [best, whole > 0 ? probability / whole : 0];
  }

  /** The words after the first, kept while it is being typed. */
  rest(state, first, threshold, key) {
    const known = `${first} ${key}`;
    if (this.rests.has(known)) return this.rests.get(known);
    const words = [first];
    const probabilities = [1];
    state = this.model.read(state, first);
    while (words.length < COMPOSED_WORDS) {
      const scores = this.model.scores(state);
      const following = argmax(scores);
      const probability = probabilities.at(-1) * Math.exp(scores[following]);
      if (probability < threshold || !this.suggestible.has(following)) break;
      words.push(following);
      probabilities.push(probability);
      state = this.model.read(state, following);
    }
    keep(this.rests, known, { words, probabilities });
    return { words, probabilities };
  }

  continuation(composed, done, typed, prefix) {
    const between = NO_SPACES.has(this.vocabulary.language) ? "" : " ";
    const text = composed.words.map((place) => this.spelled(place)).join(between);
    if ([...text.replaceAll(" ", "")].length - [...prefix].length < LEAST_COMPOSED) return "";
    if (!between && [...this.blocked].some((word) => text.includes(word))) return ""; // assembled from its parts
    if (prefix) return this.shouted(text.slice(prefix.length), typed);
    const space = wantsSpace(done) ? between : "";
    return space + (beginsSentence(done + space) ? this.capital(text) : text);
  }

  /** Rank readings of what was tapped, [word, log-likelihood of the taps], by what the model expects after the text. Of a private
   *  field nothing is kept: there the taps alone count. */
  rescore(text, readings, weight = 1, isPrivate = false) {
    if (isPrivate) return [...readings].sort((one, other) => other[1] - one[1]);
    const scores = this.model.scores(this.state(text));
    const ranked = readings.map(([word, taps]) => [word, taps + weight * this.expected(scores, word)]);
    return ranked.sort((one, other) => other[1] - one[1]);
  }

  /** The log-probability of a word, known or not. */
  expected(scores, word) {
    const place = this.vocabulary.ids.get(normalize(word, this.vocabulary.language)) ?? UNKNOWN;
    return scores[place] - (place === UNKNOWN ? UNKNOWN_WORDS : 0);
  }

  /** The text that is done, and the word that is being typed. */
  halfTyped(text) {
    if (NO_SPACES.has(this.vocabulary.language)) return [text, ""];
    const typed = lastCharacters(text, LONGEST_WORD).match(HALF_TYPED)?.[0] ?? "";
    return [text.slice(0, text.length - typed.length), typed];
  }

  /** What the model knows after a text; of the texts before it, the longest that is known is read on from. */
  state(done) {
    const state = this.states.get(done) ?? this.readOn(done);
    this.states.delete(done); // and put last, so that it is given up last
    keep(this.states, done, state);
    return state;
  }

  readOn(done) {
    let known = "";
    for (const text of this.states.keys()) {
      // A word may continue after anything but a space («...»), so a text may be split only there.
      if (text.length > known.length && SPACE.test(text.at(-1)) && done.startsWith(text)) known = text;
    }
    let state = known ? this.states.get(known) : this.model.start();
    let text = done.slice(known.length);
    const near = lastCharacters(text, FAR_BACK);
    if (near.length < text.length) {
      state = this.model.start();
      text = near.slice(near.search(SPACE) + 1); // without the incomplete word, if there are spaces at all
    }
    for (const word of this.vocabulary.encode(text)) state = this.model.read(state, word);
    return state;
  }

  /** As it belongs in the text: with a capital where a sentence begins, and in capitals where a person types so. */
  written(place, done, typed) {
    const word = this.shouted(this.spelled(place), typed);
    const begins = typed ? isUpper(String.fromCodePoint(typed.codePointAt(0))) : beginsSentence(done);
    return begins ? this.capital(word) : word;
  }

  /** The list knows no capitals, and English has one that is always written. */
  spelled(place) {
    const word = this.vocabulary.words[place];
    return this.vocabulary.language === "en" && /^i(?:'|$)/.test(word) ? this.capital(word) : word;
  }

  capital(word) {
    const [first = "", ...rest] = word;
    return this.upper(first) + rest.join("");
  }

  /** In capitals, where a person types so. */
  shouted(word, typed) {
    return [...typed].length > 1 && isUpper(typed) ? this.upper(word) : word;
  }

  upper(word) {
    return (this.vocabulary.language === "tr" ? word.replaceAll("i", "İ") : word).toUpperCase();
  }
}

/** A model as Keyman's engine asks it (a `LexicalModel` of format custom-1.0). Its transforms count characters, not code units. */
function keymanModel(predictor) {
  const length = (text) => [...text].length;
  return {
    configure({ maxLeftContextCodePoints }) {
      return { leftContextCodePoints: Math.min(maxLeftContextCodePoints, FAR_BACK), rightContextCodePoints: 0 };
    },
    predict(transform, context) {
      const characters = [...(context.left ?? "")];
      const left = characters.slice(0, Math.max(0, characters.length - transform.deleteLeft)).join("") + transform.insert;
      const { done, typed, prefix, scores } = predictor.expecting(left);
      // What is suggested stands for the keystroke too, which has not been made yet when Keyman asks.
      const inserted = [...transform.insert];
      const others = inserted.slice(0, Math.max(0, inserted.length - length(typed))).join("");
      const deleteLeft = transform.deleteLeft + Math.max(0, length(typed) - inserted.length);
      return predictor.candidates(scores, prefix).map((place) => {
        const word = predictor.written(place, done, typed);
        return { sample: { transform: { insert: others + word, deleteLeft }, displayAs: word }, p: Math.exp(scores[place]) };
      });
    },
    wordbreaker(phrase) {
      const words = phrase.matchAll(/[\p{L}\p{M}][\p{L}\p{M}'’‘ʼ`´·\u200c\u200d]*|\p{Nd}+|\S/gu);
      return [...words].map(({ 0: text, index }) => ({ start: index, end: index + text.length, length: text.length, text }));
    },
  };
}

/** A trie laid flat: words in order, so that those that begin alike are neighbours. */
class Alphabet {
  constructor(places, { words }) {
    this.places = [...places].sort((one, other) => (words[one] < words[other] ? -1 : 1));
    this.spellings = this.places.map((place) => words[place]);
  }

  /** The places in the list of the words with this beginning. */
  beginningWith(prefix) {
    return this.places.slice(...this.range(prefix));
  }

  /** Places of the longer words that start with this prefix. */
  after(prefix) {
    const [start, end] = this.range(prefix);
    return this.places.slice(start + (start < end && this.spellings[start] === prefix), end);
  }

  range(prefix) {
    return prefix ? [bisect(this.spellings, prefix), bisect(this.spellings, `${prefix}\uffff`)] : [0, this.places.length];
  }
}

function bisect(sorted, text) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] < text) low = middle + 1;
    else high = middle;
  }
  return low;
}

function argmax(scores) {
  let best = 0;
  for (let i = 1; i < scores.length; i++) if (scores[i] > scores[best]) best = i;
  return best;
}

/** At most this many characters, where one outside the first 65,536 also counts as one. */
function lastCharacters(text, count) {
  return [...text.slice(-2 * count - 1)].slice(-count).join("");
}

const isUpper = (text) => /\p{Uppercase}/u.test(text) && !/[\p{Lowercase}\p{Lt}]/u.test(text);

/** Whether what follows the text must be parted from it. */
function wantsSpace(done) {
  if (!done || SPACE.test(done.at(-1)) || OPENING.includes(done.at(-1))) return false;
  return !`"'`.includes(done.at(-1)) || !(done.length === 1 || SPACE.test(done.at(-2))); // a quotation mark that opens
}

function beginsSentence(done) {
  let end = done.length;
  while (done[end - 1] === " ") end--; // and no regular expression, which takes long over a line of spaces
  const before = done.slice(0, end);
  return !before || before.endsWith("\n") || (before.length < done.length && SENTENCE_ENDS.some((end) => before.endsWith(end)));
}

function keep(kept, key, value) {
  kept.set(key, value);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
}

/** Make a model known, with its guarantee: to pages as `taciturn.models[name]`, to Node as what is required, to Keyman as its model. */
function publish({ kind, model, words, language, blocked, ...about }) {
  const Model = { recurrent: RecurrentModel, ngram: NGramModel }[kind];
  const vocabulary = new Vocabulary(words.split("\n"), language);
  const made = new Model(model);
  const published = Object.freeze({
    ...about, // its name, its guarantee in plain words, whether there is one, the statement and the ledger's row
    language,
    vocabulary,
    model: made,
    predictor: (threshold) => new Predictor(made, vocabulary, blocked, threshold),
  });
  globalThis.taciturn ??= { models: {} };
  if (published.name in taciturn.models) throw new Error(`two models are called ${published.name}: give one of them another name`);
  taciturn.models[published.name] = published;
  if (typeof module === "object") module.exports = published;
  if (typeof LMLayerWorker !== "undefined") LMLayerWorker.loadModel(keymanModel(published.predictor()));
}

publish({"name":"private","plain":["This model learned from the text of about 50 people with differential privacy: ε = 0.72 and δ = 0.0004 for each person, with everything they wrote.","That is a strong promise: without any one of them the model would be much the same, and it can hardly repeat what only one person wrote."],"promises":true,"statement":"Privacy of run private\n\nStatement:   (0.72, 0.0004)-differential privacy; ρ = 0.5 of zero-concentrated\n             DP, in which sampling users does not count.\nSetting:     central differential privacy: those who run the curator are\n             trusted to run it unchanged.\nData:        all 4 releases of the run.\nOutput:      every estimate released by the curator, and so every model along\n             the way, not only the last.\nUnit:        one user, with everything they wrote.\nAdjacency:   add or remove one user (neighbours differ by one user, there in\n             one and absent from the other).\nGroups:      a person with two devices, who is two users here: ε = 1.65; a\n             household of four: ε = 3.80; both at the same δ.\nAccounting:  privacy loss distributions, or RDP where that is smaller; RDP\n             alone for fixed-size rounds, noise multipliers below 0.3 and\n             several runs in a row. Figures are rounded up.\nNoise:       at most 1.7e-28 (total variation, over the whole run) from the\n             rounded normal noise of the proof, which is counted in δ. The\n             guarantee is computational: it holds against anyone who cannot\n             break ChaCha20 and HMAC-SHA256, with which noise and cohorts are\n             drawn.\nClaim:       each user takes part in a round with probability 0.2, drawn by the\n             curator.\nAssumes:     the cohort of a round is known only to the curator; devices run\n             the code they are given.\n\nNot covered: held-out users, on whom accuracy was measured; what the same\n             users' text is used for elsewhere; other runs on these users\n             (`taciturn ledger show POPULATION` adds them up); choices made by\n             looking at results on private text.\nTo delete:   private/ of the run's folder holds what could remove the noise\n             (root, state, records) and who took part (participation log); it\n             is deleted when the run ends. private/ of the population holds the\n             salt of its hashed user ids and who opted out; delete it with the\n             text. A backup or snapshot of either undoes the deletion: leave\n             private/ out of them, or delete it there too. The ledger is kept.\nPublic:      sentences of a script; random directions of 20 synthetic users,\n             who audit the run; the list of words (words of sentences of a\n             script); the recipe, and the numbers of users and rounds in it.\nLedger row:  438c8ae31929f03e76c85d0b9e1fad6835dd9ff169f71ae5bbff1f6d25ddf325\n","head":"438c8ae31929f03e76c85d0b9e1fad6835dd9ff169f71ae5bbff1f6d25ddf325","language":"en","blocked":[],"words":"\u003cpad>\n\u003cunk>\n\u003cbos>\n\u003ceos>\n.\n,\n!\n?\n'\n\"\n:\n;\n-\n(\n)\n...\nthe\nwe\na\nletter\nat\nbefore\nnight\nnoon\nlamps\ntwo\nby\ntrain\nchildren\nagain\ngarden\nhello\nthanks\nbread\nan\nbrother\nmap\nmy\nold\nthey\nyou\nafter\nlunch\naunt\nher\ntomorrow\nbring\nblue\nboat\nnext\ntoday\nweek\nsorry\nfind\nfold\nread\nwater\npaint\nplease\nwell","kind":"recurrent","model":{"cell":"cifg","weights":{"input":{"values":"3AeB+IHa4IoIgbqym6iaf9U3gcrcK8p/2oG2oSSBxeGUZlR/f3fbYOYiY39/azxygZvnSuKBVMXacH99f1TnsfPIf7X+rIEg","scales":"oWAMPE1dPjxhFR48I5TMO6Ehbjzqkyc8+akNPMWWSzxI3To8zwUaPNfKUjzRW6Y7/0/ZO6ykEjw1FAc8WxIXPE8xLDyQAu07"},"recurrent":{"values":"fzjJsm22gdy/gdKgyYG2z3+BlkQd6IEjXvN/8bR/JgezgVfS23/MHcB/Xao9lSCBgeUvO4HyRhZm/MF/VSQZfzN/20m3Wn8s","scales":"Yhj7O/+c2jvGrf87LXIlPJvSnztPDdU7HEezOyCntzv4JJM7WisDPI3Uajv0cg48EacBPCG37jv96dw7mGw0PAG3LDzYPQI8"},"projection":{"values":"vYFGJi1ICwt/twziXmK6bX/YssAVf0nY","scales":"qEdqPLkRWDw8jNY7PvI7PA=="},"words":{"values":"0M2ByIHzID0duOmB/4EbT39uNXernoHgAoGamReB0aAAgcSVQ4HiuyqB2fj6gdmiIKCXgRyBwIH0ganTWrIIgY9/Fr2BMM2P3tZ/v3/v5AM+aoFjK+nSf1N/qhMbf+Q3UHKBDIEF8uV/CRf8O55vf/UiNoF/VPvVgSZMsb2BIugkzn/W4CFhgaO6yYGkI4+BSKmkf4HPERh/9OckrgjQgYEMGvV7JNx/TX/NrYFVvqvdsQWBjIM9f9XgN4GBLjzi5PrKf1J/z0UBgXIAJH+0liqBa92BofujgUPwnIEdqLDoHRiBwxB/kCfagRrZgS8c","scales":"XEbsO+MRzTsfoEQ8OHlMPLKyFzxNYOc7+A4aPJj8vzs2PuQ7Qw/qO/65GzyP/RY82HIdO3QXEjwsGD88BoX2OxAJ+TuRVwA8uZ78O85ibjxjzIk7nvzZO8kh9jua5Xc8zM4zPDUyDzyNZQI8CW7zO9DjDzyUnS48LwXAO42T2zuG8ko8I2otPOd3BjwbmvA7duYAPGTeDjwjWC48V18dPF8t9jtm3sw7UNBlPAsM4jvWNJs7jbGzO9nCuTtbWiA8Sf8TPKP8vTsltgk8c+YHPOUhGjzWQdQ7L171OxRGCjx46sc7i5DnO9tS2Tvwpbg7"},"embedding":{"values":"A8HWgYGe85d/7b1TgrF/BH/RDR65vX9PM+Y0f4EaPNX3fynTpNyBZ0kCNn8OmSqBBhuOf0dqf8Ejkn/efx6rANmBCUaxgfaTD29/XpF6f2yKf1Xmxjj7f5l/6GX9Sn9AgXMLwoE6BGgaf7OM8A9/dBwYgfQHSX9HgV4uT1TGJYHegfy/i0TsfyJ/IAV/nJYVgUwWYUyLCYHHBt9/GfMHgTaBGsyBKUQjmn9CC+figfaB0t2G5a6Bb2GB3g0pf6wx70B/6OWHEoHzsSeBrys0f+mB7RL87SqBS4HnNfOB6usCN4GYBOGBtOEW5oH6gdXE","scales":"uSflOy+btztJWyg8GJSOO6l/2jtUOkg74wvWOy4BPTwoQdU7f3EfPAcusTtieP86iIO2O/L73zvBIew7vJDbO1h7DDz36A88ZGwpPCovDTvg2wM8zQ2sPB/dCzzy4Ro8AIUHPOEIkDyq5Cs8v1QLPDfWNjwd3Bs8UyEEPPIN+jsAafs7E24HPCU2gDwKwMw781MFPLT1Lzx4BLg7PlojPNRtGjzZaEU8h7IyPMW7pDsblAc8shY1PIipADzy+8c7HcQmPKKSEjzUMQo85IYhPBHTIzxFUAo8dQAkPNxGADyODLI7c+jDO2fDIDxwvyU8"},"word_bias":"4ylyv1x8lT4+8QC/DA38Pvgcxz6xl/a+d8/vvgt7db91RS+/5hoFv2acFL9aTte+7cgNv2SSQb8ibC6/HDJnv1y3UT9OZIM+sg4cPshca77wHR4/4j63PhhfZD5LT/K+jADfPT7Ggj2VvRc/Rv74vRFAhD4ruOq9rupmvGOfT75QkLQ66RIgvlLJGD3wIR6+hPWMPn+NPD5gaUs7jC1iPslU1D3YVIq+gOyXuiSUHL7/6/S9J6YYvhZjZ75Msg++kkiaPhqzDD7UPOq9IVeuPY5RIb9SA5u94IV1vlQksL5HHqE85MNmvmx64rvdKX6+","gate_bias":"uDX8vkqXA79o6wW/WAsavxPFI7+BlxO/iVK4PlKc3T09Wq6+lyEMP9XZsr6JCIi+qS3GPp/ZET+duUo/ClnlPskFFD8gJO8+"},"restarts":[]}});
})();
