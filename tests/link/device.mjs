// A device of a fleet as docs/protocol.md has it, with nothing of Taciturn in it: Node.js 18 and its own modules.
//
//   node device.mjs FOLDER --new                            a key, and a request to be enrolled
//   node device.mjs FOLDER --server HOST:PORT               take part, with a report of zeros
//                   --values FILE                           or with these numbers: 4 bytes each, little-endian
//
// FOLDER/fleet holds authority.crt, enrolment.pub, vocabulary.txt and agreement.json. It trains nothing.
// --spoil changes one byte of what it signs or commits to, so that tests see who notices.

import {
  createCipheriv, createDecipheriv, createHash, createPrivateKey, createPublicKey, diffieHellman, generateKeyPairSync, hkdfSync, randomBytes,
  sign, verify,
} from "node:crypto";
import fs from "node:fs";
import https from "node:https";
import path from "node:path";
import { setImmediate as breathe, setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const DAY = 24 * 3600, MOST_BYTES = 64 * 2 ** 20, MOST_DEVICES = 1 << 16;
const ADVERT_BYTES = 2 + 144 + 3 * 32 + 64, SHARE_BYTES = 33, SEALED_BYTES = 12 + 2 * SHARE_BYTES + 16;
const KIND = { terms: 1, advert: 2, roster: 3, shares: 4, report: 5, survivors: 6, request: 7, unmasking: 8 };
const PRIME = 2n ** 256n + 297n;

class Refused extends Error {}
class ComeBack extends Error {
  constructor(seconds) { super(); this.seconds = seconds > 0 ? Math.min(seconds, DAY) : 0; }
}

const check = (right, otherwise) => { if (!right) throw new Refused(otherwise); };
const log = (...words) => console.error(new Date().toISOString(), ...words);
const now = () => Date.now() / 1000;

// Bytes

const number = (value, size) => Buffer.from(BigInt(value).toString(16).padStart(2 * size, "0"), "hex");
const read = (bytes) => (bytes.length ? BigInt("0x" + bytes.toString("hex")) : 0n);
const sha256 = (...parts) => createHash("sha256").update(Buffer.concat(parts)).digest();
const text = (words) => Buffer.from(words + "\0");
const double = (value) => { const bytes = Buffer.alloc(8); bytes.writeDoubleBE(value); return bytes; };
const ascending = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
const head = (kind) => Buffer.from([3, KIND[kind]]);
const block = (bytes) => Buffer.concat([number(bytes.length, 2), bytes]);
const fields = (...parts) => Buffer.concat(parts.flatMap((part) => [number(part.length, 8), part]));
const table = (rows) =>
  Buffer.concat([number(rows.size, 4), ...[...rows.keys()].sort(ascending).flatMap((device) => [number(device, 8), rows.get(device)])]);

class Reader {
  constructor(content, kind) {
    this.content = content;
    this.at = 0;
    if (kind) check(this.take(2).equals(head(kind)), `this is no ${kind}, or one of another version`);
  }
  take(size) {
    check(size <= this.content.length - this.at, "a message ends before it is whole");
    this.at += size;
    return this.content.subarray(this.at - size, this.at);
  }
  number(size) { return read(this.take(size)); }
  count() {
    const rows = Number(this.number(4));
    check(rows <= MOST_DEVICES, "a message has more rows than there are devices");
    return rows;
  }
  table(size) {
    const rows = Array.from({ length: this.count() }, () => [this.number(8), this.take(size)]);
    check(rows.every(([device], row) => row === 0 || rows[row - 1][0] < device), "a list of devices is not in order");
    return new Map(rows);
  }
  fields(count) {
    return Array.from({ length: count }, () => {
      const size = this.number(8);
      check(size <= BigInt(this.content.length), "a message ends before it is whole");
      return this.take(Number(size));
    });
  }
  end() { check(this.at === this.content.length, "a message goes on after its end"); }
}

// Keys, from and to the bytes that they are

const KEYS = { ed25519: "302a300506032b6570032100", x25519: "302a300506032b656e032100" };
const publicKey = (kind, bytes) => createPublicKey({ key: Buffer.concat([Buffer.from(KEYS[kind], "hex"), bytes]), format: "der", type: "spki" });
const rawPublic = (key) => createPublicKey(key).export({ format: "der", type: "spki" }).subarray(-32);
const rawPrivate = (key) => key.export({ format: "der", type: "pkcs8" }).subarray(-32);
const newKey = (kind) => generateKeyPairSync(kind).privateKey;
const derived = (secret, purpose) => Buffer.from(hkdfSync("sha256", secret, Buffer.alloc(0), purpose, 32));

function verified(key, content, signature) {
  try {
    return signature.length === 64 && verify(null, content, publicKey("ed25519", key), signature);
  } catch {
    return false;
  }
}

function agreed(secret, other, purpose) {
  let shared;
  try {
    shared = diffieHellman({ privateKey: secret, publicKey: publicKey("x25519", other) });
  } catch {
    throw new Refused("a public key makes no secret");
  }
  check(shared.some((byte) => byte), "a public key makes no secret");
  return derived(shared, purpose);
}

// What the authority signs

function certificateOf(bytes) {
  check(bytes.length === 144, "a certificate has 144 bytes");
  const reader = new Reader(bytes), fleet = reader.take(16), device = reader.number(8), key = reader.take(32);
  return { bytes, fleet, device, key, begins: reader.number(8), ends: reader.number(8), after: reader.number(8) };
}

function dismissedOf(bytes) {
  const reader = new Reader(bytes), fleet = reader.take(16), number = reader.number(8), count = Number(reader.number(4));
  check(bytes.length === 28 + 8 * count + 64, "this is no list of dismissed devices");
  const devices = Array.from({ length: count }, () => reader.number(8));
  check(devices.every((device, row) => row === 0 || devices[row - 1] < device), "a list of dismissed devices is not in order");
  return { bytes, fleet, number, devices: new Set(devices), digest: sha256(text("taciturn fleet: list"), bytes) };
}

const authorityHasSigned = (authority, what, bytes) =>
  verified(authority.key, Buffer.concat([text(what), bytes.subarray(0, -64)]), bytes.subarray(-64));

function checkList(authority, list) {
  check(list.fleet.equals(authority.fleet), "the list of the dismissed is of another fleet");
  check(authorityHasSigned(authority, "taciturn fleet: dismissed", list.bytes), "the list of the dismissed is not signed by the authority");
}

function checkCertificate(authority, list, certificate) {
  const at = BigInt(Math.floor(now()));
  check(certificate.fleet.equals(authority.fleet), "a certificate is of another fleet");
  check(certificate.begins <= at && at < certificate.ends, "a certificate has not begun, or has run out");
  check(certificate.after <= list.number, "the list of the dismissed is older than a certificate");
  check(!list.devices.has(certificate.device), "a device was dismissed");
  check(authorityHasSigned(authority, "taciturn fleet: certificate", certificate.bytes), "a certificate is not signed by the authority");
}

// Adverts, cells, thresholds

function advertOf(bytes) {
  check(bytes.length === ADVERT_BYTES, "this is no advert");
  const reader = new Reader(bytes, "advert"), certificate = certificateOf(reader.take(144));
  const [maskKey, shareKey, commitment, signature] = [32, 32, 32, 64].map((size) => reader.take(size));
  return { bytes, certificate, device: certificate.device, maskKey, shareKey, commitment, signature, digest: advertDigest(bytes) };
}

const advertDigest = (bytes) => sha256(text("taciturn secure sum: advert"), bytes);
const advertStatement = (terms, unsigned) => Buffer.concat([text("taciturn secure sum: advert"), terms, unsigned]);

function termsDigest(agreement, name, message, list) {
  const { bits, length, dropouts, corrupt, least, most, fingerprint } = agreement;
  const sizes = [number(bits, 1), number(length, 4), double(dropouts), double(corrupt), number(least, 4), number(most, 4)];
  return sha256(text("taciturn secure sum: terms"), head("terms"), ...[name, message, list, fingerprint].map(block), ...sizes);
}

/** The digests of the adverts of the cell in which a digest is, in order. */
function cellOf(cohort, digests, own) {
  const order = digests.map((digest) => [sha256(cohort, digest), digest]).sort(([one], [other]) => Buffer.compare(one, other));
  const count = Math.max(1, Math.ceil(order.length / 200)), place = order.findIndex(([, digest]) => digest.equals(own));
  const cell = order.filter((_, at) => at % count === place % count).map(([, digest]) => digest);
  return cell.sort(Buffer.compare);
}

function comb(all, some) {
  if (some < 0 || some > all) return 0n;
  let ways = 1n;
  for (let one = 1; one <= some; one++) ways = (ways * BigInt(all - some + one)) / BigInt(one);
  return ways;
}

const shareOf = (devices, share) => Math.floor(share * devices + 1e-9);

/** The smallest k such that the chance that any cell has more than k of the marked is at most 2^-bits. */
function atMost(cohort, marked, cell, bits) {
  const draws = comb(cohort, cell), cells = BigInt(Math.ceil(cohort / cell));
  let more = 0n;
  for (let count = Math.min(marked, cell); count > 0; count--) {
    more += comb(marked, count) * comb(cohort - marked, cell - count);
    if ((cells * more) << BigInt(bits) > draws) return count;
  }
  return 0;
}

function threshold(cohort, cell, dropouts, corrupt) {
  const bad = atMost(cohort, shareOf(cohort, corrupt), cell, 80), secret = Math.floor((cell + bad) / 2) + 1;
  check(cell >= 2 && secret <= cell - shareOf(cell, dropouts), "so few devices make no secure sum");
  return Math.max(secret, cell - atMost(cohort, shareOf(cohort, dropouts), cell, 10));
}

// Shares, masks, packing

function randomElement() {
  for (;;) {
    const bytes = randomBytes(SHARE_BYTES);
    bytes[0] &= 1;
    if (read(bytes) < PRIME) return read(bytes);
  }
}

/** Of a secret of 32 bytes, for the holders 1, 2, … */
function shares(secret, needed, holders) {
  const coefficients = [...Array.from({ length: needed - 1 }, randomElement), read(secret)];
  return Array.from({ length: holders }, (_, place) =>
    number(coefficients.reduce((value, coefficient) => (value * BigInt(place + 1) + coefficient) % PRIME, 0n), SHARE_BYTES));
}

const endsOf = (cell, sender, receiver) => Buffer.concat([cell, number(sender, 8), number(receiver, 8)]);

function seal(key, ends, content) {
  const nonce = randomBytes(12), cipher = createCipheriv("aes-256-gcm", derived(key, ends), nonce).setAAD(ends);
  return Buffer.concat([nonce, cipher.update(content), cipher.final(), cipher.getAuthTag()]);
}

function open(key, ends, sealed) {
  const cipher = createDecipheriv("aes-256-gcm", derived(key, ends), sealed.subarray(0, 12)).setAAD(ends).setAuthTag(sealed.subarray(-16));
  try {
    const content = Buffer.concat([cipher.update(sealed.subarray(12, -16)), cipher.final()]);
    return [content.subarray(0, SHARE_BYTES), content.subarray(SHARE_BYTES)];
  } catch {
    return null; // it was not sealed by that device for this one in this cell
  }
}

function addMask(total, key, bits, sign) {
  const size = bits <= 16 ? 2 : 4, stream = createCipheriv("aes-256-ctr", key, Buffer.alloc(16)).update(Buffer.alloc(total.length * size));
  for (let at = 0; at < total.length; at++) total[at] += sign * (size === 2 ? stream.readUInt16LE(2 * at) : stream.readUInt32LE(4 * at));
}

function pack(values, bits) {
  const packed = Buffer.alloc(Math.ceil((values.length * bits) / 8));
  for (let at = 0, bit = 0; at < values.length; at++, bit += bits) {
    const mask = 2 ** bits - 1, value = (values[at] & mask) >>> 0;
    for (let left = value * 2 ** (bit % 8), byte = bit >>> 3; left >= 1; left = Math.floor(left / 256), byte++) packed[byte] |= left % 256;
  }
  return packed;
}

// What is on disk

class Record {
  constructor(folder, limits) {
    this.path = path.join(folder, "record.json");
    this.limits = limits;
    this.read();
  }
  read() {
    if (!fs.existsSync(this.path)) return { name: "", list: ["-1", ""], uploads: [] };
    const known = JSON.parse(fs.readFileSync(this.path)); // damaged: it cannot know when it took part, and so does not
    check(typeof known.name === "string" && known.list.length === 2 && Array.isArray(known.uploads), "the record is damaged");
    return known;
  }
  write(known) {
    const folder = path.dirname(this.path), fresh = this.path + ".new";
    const file = fs.openSync(fresh, "w", 0o600);
    fs.writeSync(file, JSON.stringify(known));
    fs.fsyncSync(file);
    fs.closeSync(file);
    fs.renameSync(fresh, this.path);
    const there = fs.openSync(folder, "r");
    fs.fsyncSync(there);
    fs.closeSync(there);
  }
  rest({ uploads } = this.read()) { return uploads.length ? Math.max(0, uploads.at(-1).at + 3600 * this.limits.hours - now()) : 0; }
  whyNot(round, known = this.read()) {
    const { uploads } = known, last = uploads.length ? BigInt(uploads.at(-1).round) : -1n;
    if (this.rest(known)) return "it rests";
    if (uploads.length >= this.limits.max_participations) return "it took part as often as it may";
    if (uploads.length && round <= last) return "it reported to this round or a later one before";
    if (uploads.length && round - last <= BigInt(this.limits.min_separation)) return "too few rounds lie between this one and its last";
    return null;
  }
  enter(name, round, list) {
    const known = this.read(), [seen, which] = [BigInt(known.list[0]), known.list[1]], digest = list.digest.toString("hex");
    check(list.number > seen || (list.number === seen && digest === which), "this list of the dismissed is older than one it was shown, or another");
    known.list = [String(list.number), digest];
    const names = read(name.subarray(0, 8)), latest = names > round >> 16n ? names : round >> 16n;
    let whyNot = null;
    if (Number(latest) / 1e6 > now() + DAY) whyNot = "this attempt is dated in the future";
    else if (name.toString("hex") <= known.name) whyNot = "it was asked under this name, or a later one, before";
    else whyNot = this.whyNot(round, known);
    if (!whyNot) known.name = name.toString("hex");
    this.write(known);
    check(!whyNot, whyNot);
  }
  checkModel(model, { uploads } = this.read()) {
    check(uploads.every((upload) => upload.model !== model), "it reported on this model before");
  }
  upload(round, run, model) {
    const known = this.read(), whyNot = this.whyNot(round, known);
    check(!whyNot, whyNot);
    this.checkModel(model, known);
    known.uploads.push({ round: String(round), run, at: now(), model });
    this.write(known);
  }
}

function agreementOf(folder) {
  const given = JSON.parse(fs.readFileSync(path.join(folder, "agreement.json")));
  const known = Buffer.from(fs.readFileSync(path.join(folder, "enrolment.pub"), "utf8").trim(), "hex");
  check(known.length === 48, "fleet and key of an authority have 48 bytes");
  const words = fs.readFileSync(path.join(folder, "vocabulary.txt"), "utf8").replace(/\n$/, "").split("\n");
  const lists = [[given.recipe], words].map((list) => list.map((one) => Buffer.from(one)));
  const parts = [...lists, [known]].flatMap((list) => [number(list.length, 8), fields(...list)]);
  const agreement = { ...given, fingerprint: sha256(text("taciturn fleet"), ...parts), authority: { fleet: known.subarray(0, 16), key: known.subarray(16) } };
  const { bits, length, least, most, dropouts, corrupt } = agreement;
  check(bits >= 1 && bits <= 32 && length >= 1 && length <= 1 << 26, "no report has such numbers");
  check(least >= 2 && least <= most && most <= MOST_DEVICES, "no round has so many devices");
  check([dropouts, corrupt].every((share) => share >= 0 && share < 1), "shares of devices lie between 0 and 1");
  return agreement;
}

// The device, stage by stage

class Device {
  constructor(key, agreement, record, values, spoil) {
    Object.assign(this, { key, agreement, record, values, sum: null });
    this.told = (what, bytes) => { if (what === spoil) { bytes = Buffer.from(bytes); bytes[bytes.length - 1] ^= 1; } return bytes; };
  }

  async answer(kind, content) {
    switch (kind) {
      case "check-in": return this.checkIn(content);
      case "advertise": return this.advertise(content);
      case "share": return this.share(this.at("share"), content);
      case "report": return this.report(this.at("report"), content);
      case "sign": return this.sign(this.at("sign"), content);
      case "unmask": return this.unmask(this.at("unmask"), content);
      case "come back": check(content.length === 8, "a time has eight bytes"); throw new ComeBack(content.readDoubleBE());
      default: throw new Refused(`“${kind}” is no question for a device`);
    }
  }

  at(stage) {
    check(this.sum?.stage === stage, `it is not the time to ${stage}`);
    return this.sum;
  }

  checkIn(content) {
    const reader = new Reader(content), [fingerprint, round] = reader.fields(2);
    reader.end();
    check(fingerprint.equals(this.agreement.fingerprint), "the server trains by another recipe, or for another authority's devices");
    if (!this.record.whyNot(decimal(round))) return Buffer.from("ready");
    const rest = this.record.rest();
    if (!rest) return Buffer.from("not now");
    this.sum = null;
    throw new ComeBack(rest);
  }

  advertise(content) {
    this.sum = null; // whatever round it was in is over
    const reader = new Reader(content), [name, run, round, message, own, listed] = reader.fields(6);
    reader.end();
    const { authority } = this.agreement, certificate = certificateOf(own), list = dismissedOf(listed);
    check(name.length === 16 && run.length <= 255 && message.length === 32, "this is no attempt at a round");
    checkList(authority, list);
    checkCertificate(authority, list, certificate);
    check(certificate.key.equals(rawPublic(this.key)), "this certificate is of another device");
    this.record.enter(name, decimal(round), list);
    const terms = termsDigest(this.agreement, name, message, list.digest);
    const maskKey = newKey("x25519"), shareKey = newKey("x25519"), seed = randomBytes(32);
    const commitment = sha256(text("taciturn secure sum: seed"), this.told("seed", seed));
    const unsigned = Buffer.concat([head("advert"), own, rawPublic(maskKey), rawPublic(shareKey), commitment]);
    const advert = Buffer.concat([unsigned, sign(null, this.told("advert", advertStatement(terms, unsigned)), this.key)]);
    this.sum = { stage: "share", run, round, message, list, terms, maskKey, shareKey, seed, advert, device: certificate.device };
    return advert;
  }

  share(sum, content) {
    const { agreement } = this, reader = new Reader(content, "roster");
    const adverts = Array.from({ length: reader.count() }, () => advertOf(reader.take(Number(reader.number(2)))));
    const rows = reader.table(32), all = [...rows.values()], own = advertDigest(sum.advert);
    reader.end();
    check(adverts.every((advert, at) => at === 0 || adverts[at - 1].device < advert.device), "adverts are not in order");
    check(rows.get(sum.device)?.equals(own), "the advert of this device is not in the list of the round");
    check(new Set(all.map((digest) => digest.toString("hex"))).size === all.length, "an advert is in the list twice");
    check(agreement.least <= all.length && all.length <= agreement.most, "so many devices are not in a round");
    const cohort = sha256(text("taciturn secure sum: cohort"), sum.terms, table(rows)), cell = cellOf(cohort, all, own);
    const shown = [own, ...adverts.map((advert) => advert.digest)].sort(Buffer.compare);
    check(Buffer.concat(shown).equals(Buffer.concat(cell)), "these are not the devices of its cell");
    for (const advert of adverts) {
      check(rows.get(advert.device)?.equals(advert.digest), "a device has another advert in the list of the round");
      checkCertificate(agreement.authority, sum.list, advert.certificate);
      const statement = advertStatement(sum.terms, advert.bytes.subarray(0, -64));
      check(verified(advert.certificate.key, statement, advert.signature), "keys are not signed by their device for this round");
    }
    const keys = new Set([rawPublic(this.key), ...adverts.map((advert) => advert.certificate.key)].map((key) => key.toString("hex")));
    check(keys.size === adverts.length + 1, "two devices of the cell have one key");
    const name = sha256(text("taciturn secure sum: cell"), cohort, ...cell);
    const needed = threshold(all.length, cell.length, agreement.dropouts, agreement.corrupt);
    const others = new Map(adverts.map((advert) => {
      const [low, high] = [sum.device, advert.device].sort(ascending);
      const mask = agreed(sum.maskKey, advert.maskKey, Buffer.concat([Buffer.from("pair mask"), endsOf(name, low, high)]));
      const share = agreed(sum.shareKey, advert.shareKey, Buffer.concat([Buffer.from("shares"), name]));
      return [advert.device, { mask, share, key: advert.certificate.key }];
    }));
    const holders = [sum.device, ...others.keys()].sort(ascending);
    const [seeds, maskKeys] = [sum.seed, rawPrivate(sum.maskKey)].map((secret) => shares(secret, needed, holders.length));
    const held = new Map(holders.map((device, at) => [device, [seeds[at], maskKeys[at]]]));
    const sealed = new Map([...others].map(([device, { share }]) => [device, seal(share, endsOf(name, sum.device, device), Buffer.concat(held.get(device)))]));
    Object.assign(sum, { stage: "report", cell: name, needed, others, held: new Map([[sum.device, held.get(sum.device)]]) });
    delete sum.maskKey;
    delete sum.shareKey;
    return Buffer.concat([head("shares"), name, table(sealed)]);
  }

  async report(sum, content) {
    const { bits, length } = this.agreement, reader = new Reader(content), [delivery, key, message] = reader.fields(3);
    reader.end();
    const hash = sha256(text("taciturn fleet: message"), fields(sum.run, sum.round, message, key));
    check(hash.equals(sum.message), "the message is not the one that the devices of this round have agreed on");
    const model = this.checkMessage(message);
    this.record.checkModel(model); // before it trains for nothing
    const shared = new Reader(delivery, "shares");
    this.checkCell(sum, shared);
    const sealed = shared.table(SEALED_BYTES), held = new Map(sum.held);
    shared.end();
    check([...sealed.keys()].every((device) => sum.others.has(device)), "shares came from a device that is not in this cell");
    for (const [device, one] of sealed) {
      const opened = open(sum.others.get(device).share, endsOf(sum.cell, device, sum.device), one);
      if (opened) held.set(device, opened);
    }
    check(held.size >= sum.needed, "too few devices have shared their secrets");
    const values = this.values(length); // here a device trains
    check(values.length === length && values.every((value) => value < 2 ** bits), "this is no report");
    const total = Uint32Array.from(values);
    addMask(total, derived(sum.seed, Buffer.concat([Buffer.from("own mask"), sum.cell])), bits, 1);
    for (const device of sealed.keys()) {
      addMask(total, sum.others.get(device).mask, bits, sum.device < device ? 1 : -1);
      await breathe(); // or nobody would say meanwhile that this device is alive
    }
    try {
      this.record.upload(decimal(sum.round), sum.run.toString(), model); // on disk, before anything leaves
    } catch (error) {
      this.sum = null; // whoever signs a list has sent a report
      throw error;
    }
    Object.assign(sum, { stage: "sign", held, peers: new Set(sealed.keys()) });
    delete sum.seed;
    return Buffer.concat([head("report"), this.told("cell", sum.cell), pack(total, bits)]);
  }

  /** Checks what the device is to train on; the hash of the model in it. */
  checkMessage(message) {
    const { leaves, clip_norm } = this.agreement, clip = Buffer.from(clip_norm, "hex");
    const floats = leaves.reduce((sum, [, shape]) => sum + shape.reduce((one, other) => one * other, 1), 0);
    check(message.length === 4 * floats + clip.length + 4, "the message is not of the recipe's model");
    for (let at = 0; at < floats; at++) check(Number.isFinite(message.readFloatLE(4 * at)), "the model has numbers that are not finite");
    check(message.subarray(4 * floats, -4).equals(clip), "the clip norm is not the recipe's");
    const model = Buffer.from(message.subarray(0, 4 * floats));
    for (let at = 0; at < floats; at++) if (model.readFloatLE(4 * at) === 0) model.writeFloatLE(0, 4 * at); // there is a -0
    return sha256(text("taciturn fleet: model"), model).toString("hex");
  }

  sign(sum, content) {
    const reader = new Reader(content, "survivors");
    this.checkCell(sum, reader);
    const survivors = reader.table(0);
    reader.end();
    check(survivors.has(sum.device), "this device has reported, and is not listed so");
    check([...survivors.keys()].every((device) => device === sum.device || sum.peers.has(device)), "a device shared no secret with this one");
    check(survivors.size >= sum.needed, "too few devices have reported");
    const statement = Buffer.concat([text("taciturn secure sum: survivors"), content]);
    Object.assign(sum, { stage: "unmask", survivors, statement });
    return sign(null, this.told("survivors", statement), this.key);
  }

  unmask(sum, content) {
    const reader = new Reader(content, "request");
    this.checkCell(sum, reader);
    const signatures = reader.table(64), signed = new Set([sum.device]);
    reader.end();
    for (const [device, signature] of signatures)
      if (sum.survivors.has(device) && sum.others.has(device) && verified(sum.others.get(device).key, sum.statement, signature)) signed.add(device);
    check(signed.size >= sum.needed, "too few have signed the survivors that this device has");
    const seeds = new Map(), maskKeys = new Map();
    for (const [device, [seed, maskKey]] of sum.held)
      if (sum.survivors.has(device)) seeds.set(device, seed);
      else maskKeys.set(device, maskKey);
    this.sum = null; // once
    return Buffer.concat([head("unmasking"), sum.cell, table(seeds), table(maskKeys)]);
  }

  checkCell(sum, reader) { check(reader.take(32).equals(sum.cell), "this belongs to another round, or to another cell of it"); }
}

function decimal(bytes) {
  check(/^[0-9]{1,30}$/.test(bytes.toString("latin1")), "a round has a number");
  return BigInt(bytes.toString("latin1"));
}

// The wire

class Status extends Error {
  constructor(status, why) { super(`${status} ${why}`); this.status = status; }
}

class Wire {
  constructor(server, authority, key) {
    const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(server);
    this.key = key;
    this.token = null;
    this.last = {};
    this.file = {};
    const agent = new https.Agent({ keepAlive: true });
    // Given `ca`, Node.js trusts this and nothing that the system does; it follows no redirects and knows of no proxies.
    this.options = { host, port, agent, ca: fs.readFileSync(authority), minVersion: "TLSv1.3", rejectUnauthorized: true };
  }

  async request(method, path, expected, body, headers = {}, seconds = 30, tries = 2) {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.once(method, path, expected, body, headers, seconds);
      } catch (error) {
        if (attempt === tries || (error instanceof Status && error.status !== 503)) throw error;
        await sleep(attempt === 1 ? 0 : 1000);
      }
    }
  }

  once(method, path, expected, body, headers, seconds) {
    return new Promise((resolve, reject) => {
      if (this.token) headers = { ...headers, authorization: `Bearer ${this.token}` };
      if (method === "PUT" || method === "POST") headers = { ...headers, "content-length": body?.length ?? 0 };
      const asked = https.request({ ...this.options, method, path, headers, signal: AbortSignal.timeout(1000 * seconds) }, (response) => {
        const parts = [];
        let size = 0;
        response.on("data", (part) => {
          parts.push(part);
          if ((size += part.length) > MOST_BYTES) response.destroy(new Error("the server sends more than a question may have"));
        });
        response.on("error", reject);
        response.on("end", () => {
          const content = Buffer.concat(parts), { statusCode, headers } = response;
          if (!expected.includes(statusCode)) reject(new Status(statusCode, content.toString("latin1").slice(0, 200)));
          else resolve({ status: statusCode, headers, content });
        });
      });
      asked.on("error", reject);
      asked.end(body);
    });
  }

  async signIn() {
    this.token = null;
    const time = Math.floor(now()), nonce = randomBytes(16), key = rawPublic(this.key);
    const signature = sign(null, Buffer.concat([text("taciturn fleet: session"), key, number(time, 8), nonce]), this.key);
    const [given, once, signed] = [key, nonce, signature].map((bytes) => bytes.toString("base64"));
    const body = Buffer.from(JSON.stringify({ key: given, nonce: once, signature: signed, time }));
    this.token = word((await this.request("POST", "/v1/session", [200], body, {}, 30, 1)).content.toString("latin1")); // works once
    log("connected to the server");
  }

  async signOut() {
    if (this.token) await this.once("DELETE", "/v1/session", [204], undefined, {}, 3).catch(() => {});
    this.token = null;
  }

  async serve(device) {
    const began = Date.now(), asked = await this.request("GET", "/v1/question?wait=55", [200, 204], undefined, {}, 85);
    if (asked.status === 204) {
      if (Date.now() - began < 500) await sleep(500);
      return;
    }
    const name = word(asked.headers.question ?? ""), kind = asked.headers.kind ?? "";
    const alive = setInterval(() => this.once("POST", "/v1/alive", [204], undefined, {}, 30).catch(() => {}), 30_000);
    try {
      if (name !== this.last.name) {
        const shared = asked.headers.shared ? await this.shared(word(asked.headers.shared)) : Buffer.alloc(0);
        if (!shared) return void (await sleep(500));
        this.last = { name, ...(await outcome(device, kind, Buffer.concat([asked.content, shared]))) };
      }
      const { answer, failed, comeBack } = this.last;
      try {
        const put = await this.request("PUT", `/v1/answer/${name}`, [204, 410], answer, failed ? { failed } : {}, 120, 5);
        if (put.status === 410) log(`the answer to “${kind}” came too late`);
      } finally {
        if (comeBack) throw comeBack;
      }
    } finally {
      clearInterval(alive);
    }
  }

  /** The file with this hash, or null where it is gone, or another. */
  async shared(name) {
    if (this.file.name !== name) {
      const { content } = await this.request("GET", `/v1/files/${name}`, [200, 404], undefined, {}, 120);
      if (sha256(content).toString("hex") !== name) return null;
      this.file = { name, content };
    }
    return this.file.content;
  }
}

/** What goes into a request again: whatever a server sends, it is one word. */
function word(given) {
  check(/^[A-Za-z0-9_-]{1,128}$/.test(given), "the server's answer is garbage");
  return given;
}

async function outcome(device, kind, content) {
  try {
    const answer = await device.answer(kind, content);
    return answer.length > MOST_BYTES ? { failed: "too large" } : { answer };
  } catch (error) {
    if (error instanceof ComeBack) return { answer: Buffer.alloc(0), comeBack: error };
    log(`no answer to “${kind}”: ${error.message}`); // which stays here
    return { failed: "failed" };
  }
}

async function run(wire, device) {
  for (let wait = 1; ; ) {
    try {
      await wire.signIn();
      for (;;) {
        await wire.serve(device);
        wait = 1;
      }
    } catch (error) {
      await (error instanceof ComeBack ? wire.signOut() : log(`${error.message}; trying again`));
      await sleep(1000 * (error instanceof ComeBack ? error.seconds : wait * (0.5 + Math.random() / 2)));
      if (!(error instanceof ComeBack)) wait = Math.min(2 * wait, 30);
    }
  }
}

// The command

function newDevice(folder) {
  fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
  const file = path.join(folder, "key.pem");
  if (!fs.existsSync(file)) fs.writeFileSync(file, newKey("ed25519").export({ format: "pem", type: "pkcs8" }), { mode: 0o600, flag: "wx" });
  const key = createPrivateKey(fs.readFileSync(file)), raw = rawPublic(key), start = "taciturn-device:";
  const request = start + Buffer.concat([raw, sign(null, Buffer.concat([Buffer.from(start), raw]), key)]).toString("base64");
  fs.writeFileSync(path.join(folder, "request.txt"), request + "\n");
  console.log(request);
}

function numbersOf(file) {
  const bytes = fs.readFileSync(file);
  check(bytes.length % 4 === 0, "a number has four bytes");
  return Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readUInt32LE(4 * at));
}

function main() {
  const texts = Object.fromEntries(["server", "values", "spoil"].map((name) => [name, { type: "string" }]));
  const { values: options, positionals: [folder] } = parseArgs({ allowPositionals: true, options: { new: { type: "boolean" }, ...texts } });
  if (options.new) return newDevice(folder);
  const key = createPrivateKey(fs.readFileSync(path.join(folder, "key.pem"))), given = path.join(folder, "fleet"), agreement = agreementOf(given);
  const values = options.values ? () => numbersOf(options.values) : (length) => new Array(length).fill(0);
  const wire = new Wire(options.server, path.join(given, "authority.crt"), key);
  process.on("SIGTERM", () => wire.signOut().finally(() => process.exit(0)));
  return run(wire, new Device(key, agreement, new Record(folder, agreement), values, options.spoil));
}

export { cellOf, pack, sha256, termsDigest, threshold };
if (process.argv[1] && fs.realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) await main();
