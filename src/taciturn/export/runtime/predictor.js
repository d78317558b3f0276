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
