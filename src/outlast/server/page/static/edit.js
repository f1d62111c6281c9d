// Changing entries: add, edit (over the entry that was seen and no other), delete, delete all, restore.

import { ask, changed } from "./asking.js";
import { offer, waysOf } from "./copy.js";
import { check, laidOut, place, plain } from "./exact.js";
import { sure } from "./sure.js";
import { local, now } from "./times.js";

const part = (name) => document.getElementById(`edit-${name}`);
let seen = null; // the entry as it was read; null: a new one
let theirs = null;
let turn = 0; // counts what was asked of the editor: an answer that comes late is for another one

export function editing() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    const act = button && ACTS[button.dataset.do];
    if (act) attempt(act, button);
  });
  const form = part("form");
  if (!form) return;
  form.addEventListener("submit", (event) => { event.preventDefault(); save(); });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !part("save").disabled) save();
  });
  part("value").addEventListener("input", tell);
  part("at")?.addEventListener("input", () => { form.elements.expiry.value = "at"; });
  part("take").addEventListener("click", () => fill(theirs));
  part("over").addEventListener("click", () => { seen = theirs.gone ? null : theirs; save(); });
  const dialog = document.getElementById("edit");
  dialog.addEventListener("close", () => { turn += 1; });
  offer(dialog, () => {
    try {
      return tell() ? write() : null;
    } catch (error) {
      return wrong(error.message);
    }
  });
}

// How commands and programs are told of the scope that is shown.
const here = () => document.querySelector("[data-handle]").dataset;

function command(verb, more, options = "") {
  const { names, options: scope } = here();
  return { verb: `state ${verb}`, names: [...JSON.parse(names), ...more], options: `${scope}${options}` };
}

function write() {
  const key = part("key").value, value = part("value").value.trim(), { handle } = here();
  const { option, argument } = lasting(kept());
  const guard = seen ? ` --if-revision ${seen.revision}` : " --if-revision absent";
  const text = `json.loads(${JSON.stringify(value)})`;
  return waysOf(
    { method: "PUT", ...request() },
    command("set", [key, value], `${guard}${option}`),
    `${handle}.compare_and_set(${JSON.stringify(key)}, ${text}, revision=${seen ? seen.revision : "None"}${argument})`,
  );
}

// For how many seconds it is kept where that is not the default (null).
function kept() {
  const when = expires();
  if (when === undefined || when === "default") return null;
  return when === null ? Infinity : secondsTo(when);
}

// How long what is written anew is kept, as commands and programs are told; null is the default.
function lasting(span) {
  if (span === null) return { option: "", argument: "" };
  return span === Infinity
    ? { option: " --retention never", argument: ", retention=outlast.NEVER_EXPIRE" }
    : { option: ` --retention ${span}s`, argument: `, retention=datetime.timedelta(seconds=${span})` };
}

const secondsTo = (when) => Math.max(1, Math.round((Date.parse(when) - now()) / 1000));

async function attempt(act, button) {
  try {
    await act(button);
  } catch (error) {
    sure({ title: "This did not work", text: error.message, yes: "Try again", act: () => act(button) });
  }
}

const ACTS = {
  add: () => open(null),
  edit: async (button) => {
    const mine = ++turn, entry = await ask("GET", urlOf(button.dataset.key)).catch((error) => error);
    if (mine !== turn) return;
    if (!(entry instanceof Error)) open(entry);
    else if (entry.status === 404) open({ key: button.dataset.key, gone: true }, entry.message);
    else throw entry;
  },
  delete: (button) => {
    const { key, warning, etag } = button.dataset;
    sure({
      title: `Delete ${key}?`, text: warning, yes: "Delete",
      act: async () => { await ask("DELETE", urlOf(key), { headers: { "If-Match": `"${etag}"` } }); changed(); },
      ways: () => waysOf(
        { method: "DELETE", url: urlOf(key), headers: { "If-Match": `"${etag}"` } },
        command("rm", [key]),
        `${here().handle}.delete(${JSON.stringify(key)})`,
      ),
    });
  },
  "clear-state": async () => {
    const { state, which } = document.getElementById("state").dataset;
    const { entries, after } = await ask("GET", `${state}?${which}&limit=1000`);
    const url = `${state}?${which}`;
    const ways = () => waysOf({ method: "DELETE", url }, command("clear", [], " --yes"), `${here().handle}.clear()`);
    empty("this task instance", entries.length, after !== null, url, ways);
  },
  "clear-all": async ({ dataset }) => {
    const { found, more } = await ask("GET", dataset.count);
    empty(`all ${dataset.indexes} indexes`, found.length, more, dataset.url, () => waysOf({ method: "DELETE", url: dataset.url }));
  },
  restore: (button) => {
    const { key, revision, url, expires, value, there } = button.dataset;
    const { option, argument } = lasting(expires === undefined ? null : expires ? secondsTo(expires) : Infinity);
    const when = expires === undefined ? "" : `,"expires_at":${expires ? JSON.stringify(expires) : "null"}`;
    const body = `{"revision":${revision}${when}}`;
    sure({
      title: `Restore revision ${revision}?`,
      text: `That version is written again, as a new revision${value === undefined ? "" : `: ${value}`}. The value there now${there === undefined ? "" : `, ${there},`} stays in the history.`,
      yes: "Restore",
      risky: false,
      act: async () => { await ask("POST", url, { body }); changed(); },
      ways: () => waysOf(
        { method: "POST", url, body },
        command("restore", [key, revision], option),
        `${here().handle}.restore(${JSON.stringify(key)}, ${revision}${argument})`,
      ),
    });
  },
};

// Ask, with the count, before every key of something is deleted.
function empty(what, count, more, url, ways) {
  sure({
    title: `Delete all keys of ${what}?`,
    text: `${more ? "More than " : ""}${count} ${count === 1 ? "key" : "keys"}. The next attempt begins from the start: it will find no checkpoint and no job. Each key's history stays, and can be restored one by one.`,
    yes: "Delete all keys",
    act: async () => { await ask("DELETE", url); changed(); },
    ways,
  });
}

function urlOf(key) {
  const { state, which } = document.querySelector("[data-state]").dataset;
  return `${state}/${encodeURIComponent(key)}${which ? "?" + which : ""}`;
}

function open(entry, problem = "") {
  turn += 1;
  fill(entry);
  wrong(problem);
  document.getElementById("edit").showModal();
  part(entry ? "value" : "key").focus();
}

function wrong(problem) {
  part("problem").textContent = problem;
  part("problem").hidden = !problem;
  return null;
}

function fill(entry) {
  seen = entry && !entry.gone ? entry : null;
  part("title").textContent = entry ? `Edit ${plain(entry.key)}` : "Add a key";
  part("key-field").hidden = Boolean(entry);
  part("key").value = entry?.key ?? "";
  const masked = Boolean(entry?.masked);
  part("value").value = !entry || masked || entry.value === undefined ? "" : laidOut(entry.value);
  part("value").placeholder = masked ? "the value is secret; what you write here replaces it" : "";
  part("conflict").hidden = true;
  theirs = null;
  expiry(entry);
  tell();
}

function expiry(entry) {
  const choices = part("form").elements.expiry;
  if (!choices) return;
  const known = Boolean(entry && !entry.gone);
  part("keep").hidden = !known;
  choices.value = known ? "keep" : "default";
  part("keep-time").textContent = !known ? "" : entry.expires_at === null ? "never" : local(entry.expires_at);
  part("at").value = "";
}

// Say what is wrong with the value, while it is being typed; return whether it can be sent.
function tell() {
  const text = part("value").value, said = part("check");
  const fault = text.trim() ? check(text) : { message: "a value is missing", at: 0 };
  const doubt = fault ? "" : moved(text);
  const isSecret = seen?.masked && !text.trim();
  said.textContent = isSecret ? "The value there is secret and not shown. What you write here replaces it." : fault ? `${place(text, fault.at)}: ${fault.message}` : doubt || fine(text);
  said.classList.toggle("wrong", (Boolean(fault) && text.trim() !== "") || doubt !== "");
  part("save").disabled = Boolean(fault);
  return !fault;
}

// A checkpoint's mark may have a digest of the items up to its number, which is no good for another number.
function moved(text) {
  const before = typeof seen?.value === "string" ? seen.value : "", digest = DIGEST.exec(before)?.[1];
  if (!digest || digest !== DIGEST.exec(text)?.[1] || done(text) === done(before)) return "";
  return `The digest is that of item ${done(before)}: with another number the next attempt refuses this mark. Without a digest it goes on after any item: {"done": ${done(text)}}.`;
}

const DIGEST = /"digest": ?("[^"]+")/;
const done = (json) => /"done": ?(\d+)/.exec(json)?.[1];

// What is said of a value that can be sent.
const fine = (text) => (DIGEST.test(text) && done(text)
  ? 'A checkpoint\'s mark. To have the next attempt go on after another item, write {"done": N} without a digest.'
  : "valid JSON; 2⁷⁰, 1.0 and -0.0 keep their digits");

function request() {
  const headers = seen ? { "If-Match": `"${seen.etag}"` } : { "If-None-Match": "*" };
  const when = expires();
  return { url: urlOf(part("key").value), headers, body: `{"value":${part("value").value.trim()}${when === undefined ? "" : `,"expires_at":${JSON.stringify(when)}`}}` };
}

// When the entry is to expire, as the API takes it; undefined for what has no expiry at all (an asset's entry).
function expires() {
  const choice = part("form").elements.expiry?.value;
  if (choice === undefined) return undefined;
  if (choice === "keep") return seen ? seen.expires_at : "default";
  if (choice === "never") return null;
  if (choice === "default") return "default";
  if (!part("at").value) throw new Error("Say when it is to expire, or choose another expiry.");
  return new Date(part("at").value).toISOString();
}

async function save() {
  wrong("");
  if (!tell()) return;
  const mine = turn;
  part("save").disabled = true;
  try {
    if (!part("key").value) throw new Error("The key is missing.");
    const { url, ...more } = request();
    await ask("PUT", url, more);
    if (mine === turn) document.getElementById("edit").close();
    changed();
  } catch (error) {
    if (mine !== turn) return; // it was closed, and may be open for another key
    if (error.status === 412) conflict(error.current);
    else wrong(error.message);
  } finally {
    if (mine === turn) part("save").disabled = false;
  }
}

function conflict(current) {
  theirs = current ?? { key: part("key").value, gone: true };
  const by = current?.writer;
  part("conflict-who").textContent = current
    ? `Revision ${current.revision}, written by ${by.kind === "task" ? `attempt ${by.attempt}` : [by.kind, by.name && plain(by.name)].filter(Boolean).join(" ")}. Nothing was overwritten.`
    : "It was deleted, or has expired. Nothing was written.";
  part("theirs").textContent = !current ? "(no value)" : current.masked ? "(masked)" : plain(laidOut(current.value));
  part("yours").textContent = plain(part("value").value);
  part("conflict").hidden = false;
  part("over").focus();
}
