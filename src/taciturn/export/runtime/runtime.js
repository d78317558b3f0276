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
