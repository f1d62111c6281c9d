// JSON read so that values stay text: what is stored (2^70, 1.0, -0.0, "\u0000") never passes through a number.
// `read` reads an answer of the API; what it has under "value" or "params" is the text itself.
// `check` says what is wrong with a text that is to be a value, or null.

const KEPT = new Set(["value", "params"]);
const DEEPEST = 100;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;
const WORDS = [["true", true], ["false", false], ["null", null]];

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  fail(message) {
    throw Object.assign(new SyntaxError(message), { at: this.at });
  }

  space() {
    SPACE.lastIndex = this.at;
    SPACE.test(this.text);
    this.at = SPACE.lastIndex;
  }

  whole(kept) {
    this.space();
    const found = this.value(0, kept);
    this.space();
    if (this.at < this.text.length) this.fail("there is something after the value");
    return found;
  }

  value(depth, kept) {
    if (depth > DEEPEST) this.fail(`nested deeper than ${DEEPEST}`);
    const first = this.text[this.at];
    if (first === "{") return this.object(depth, kept);
    if (first === "[") return this.array(depth, kept);
    if (first === '"') return this.string();
    for (const [word, meaning] of WORDS) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return meaning;
      }
    }
    NUMBER.lastIndex = this.at;
    const number = NUMBER.exec(this.text);
    if (!number) this.fail(first === undefined ? "a value is missing" : `${JSON.stringify(first)} begins no value; a text needs double quotes`);
    this.at = NUMBER.lastIndex;
    if (this.at < this.text.length && !/[\s,\]}]/.test(this.text[this.at])) this.fail("this is no number as JSON has it");
    return Number(number[0]);
  }

  object(depth, kept) {
    const found = Object.create(null);
    this.at += 1;
    this.space();
    if (this.text[this.at] === "}") { this.at += 1; return found; }
    for (;;) {
      this.space();
      if (this.text[this.at] !== '"') this.fail("a name in double quotes is missing");
      const start = this.at, name = this.string();
      if (name in found) { this.at = start; this.fail(`${JSON.stringify(name)} is there twice`); }
      this.space();
      if (this.text[this.at] !== ":") this.fail("a colon is missing");
      this.at += 1;
      this.space();
      const begin = this.at, keeps = kept && KEPT.has(name);
      const value = this.value(keeps ? 0 : depth + 1, kept && !keeps); // the envelope does not count
      found[name] = keeps ? this.text.slice(begin, this.at) : value;
      this.space();
      const next = this.text[this.at];
      if (next !== "," && next !== "}") this.fail("a comma or } is missing");
      this.at += 1;
      if (next === "}") return found;
    }
  }

  array(depth, kept) {
    const found = [];
    this.at += 1;
    this.space();
    if (this.text[this.at] === "]") { this.at += 1; return found; }
    for (;;) {
      this.space();
      found.push(this.value(depth + 1, kept));
      this.space();
      const next = this.text[this.at];
      if (next !== "," && next !== "]") this.fail("a comma or ] is missing");
      this.at += 1;
      if (next === "]") return found;
    }
  }

  string() {
    const start = this.at;
    for (this.at += 1; ; ) {
      const code = this.text.charCodeAt(this.at);
      if (code === 0x22) break;
      if (Number.isNaN(code)) { this.at = start; this.fail("a text has no end: double quotes are missing"); }
      if (code < 0x20) this.fail("a text has a line break or another control character; write it as \\n or \\u…");
      if (code === 0x5c) {
        ESCAPE.lastIndex = this.at;
        if (!ESCAPE.test(this.text)) this.fail("there is no such escape");
        this.at = ESCAPE.lastIndex;
      } else this.at += 1;
    }
    this.at += 1;
    return JSON.parse(this.text.slice(start, this.at)); // a text only: names and addresses of the envelope
  }
}

export const read = (text) => new Reader(text).whole(true);

export function check(text) {
  try {
    const value = new Reader(text).whole(false);
    return value === null ? { message: "null is not stored; delete the key instead", at: 0 } : null;
  } catch (error) {
    if (error instanceof SyntaxError) return { message: error.message, at: error.at ?? 0 };
    throw error;
  }
}

// A text with what cannot be seen, or turns others round, written as an escape, for reading only.
export const plain = (text) => text.replace(/[\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\x7f-\x9f]/g,
  (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function place(text, at) {
  const before = text.slice(0, at).split("\n");
  return `line ${before.length}, column ${before.at(-1).length + 1}`;
}

// The same JSON over several lines, token for token.
export function laidOut(text) {
  let out = "", depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (character === '"') {
      let end = at + 1;
      while (text[end] !== '"') end += text[end] === "\\" ? 2 : 1;
      out += text.slice(at, end + 1);
      at = end;
    } else if (character === "{" || character === "[") {
      const close = character === "{" ? "}" : "]";
      if (text[at + 1] === close) { out += character + close; at += 1; }
      else { depth += 1; out += character + line(); }
    } else if (character === "}" || character === "]") { depth -= 1; out += line() + character; }
    else if (character === ",") out += "," + line();
    else if (character === ":") out += ": ";
    else if (!/\s/.test(character)) out += character;
  }
  return out;
}
