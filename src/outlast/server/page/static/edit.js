// Changing entries: add, edit (over the entry that was seen and no other), delete, delete all, restore.

import { ask, changed, quoted } from "./asking.js";
import { offer, waysOf } from "./copy.js";
import { check, laidOut, place } from "./exact.js";
import { sure } from "./sure.js";
import { local } from "./times.js";

const part = (name) => document.getElementById(`edit-${name}`);
let seen = null; // the entry as it was read; null: a new one
let theirs = null;

export function editing() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    const act = button && ACTS[button.dataset.do];
    if (act) attempt(act, button);
  });
  const form = part("form");
  if (!form) return;
  form.addEventListener("submit", (event) => { event.preventDefault(); save(); });
  part("value").addEventListener("input", tell);
  part("at")?.addEventListener("input", () => { form.elements.expiry.value = "at"; });
  part("take").addEventListener("click", () => fill(theirs));
  part("over").addEventListener("click", () => { seen = theirs.gone ? null : theirs; save(); });
  offer(document.getElementById("edit"), () => (tell() ? write() : null));
}

// How commands and programs are told of the scope that is shown.
const here = () => document.querySelector("[data-words]").dataset;

function write() {
  const key = part("key").value, value = part("value").value.trim(), { words, handle } = here();
  const span = kept();
  const retention = span === null ? "" : `, retention=${span === Infinity ? "outlast.NEVER_EXPIRE" : `datetime.timedelta(seconds=${span})`}`;
  const guard = seen ? ` --if-revision ${seen.revision}` : " --if-revision absent";
  const text = `json.loads(${JSON.stringify(value)})`;
  return waysOf(
    { method: "PUT", ...request() },
    `state set ${words} ${quoted(key)} ${quoted(value)}${guard}${span === null ? "" : ` --retention ${span === Infinity ? "never" : `${span}s`}`}`,
    `${handle}.compare_and_set(${JSON.stringify(key)}, ${text}, revision=${seen ? seen.revision : "None"}${retention})`,
  );
}

// For how many seconds it is kept where that is not the default (null).
function kept() {
  const when = expires();
  if (when === undefined || when === "default") return null;
  return when === null ? Infinity : Math.max(1, Math.round((Date.parse(when) - Date.now()) / 1000));
}

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
    try {
      open(await ask("GET", urlOf(button.dataset.key)));
    } catch (error) {
      open({ key: button.dataset.key, gone: true }, error.message);
    }
  },
  delete: (button) => {
    const { key, warning, etag } = button.dataset;
    sure({
      title: `Delete ${key}?`, text: warning, yes: "Delete",
      act: async () => { await ask("DELETE", urlOf(key), { headers: { "If-Match": `"${etag}"` } }); changed(); },
      ways: () => waysOf(
        { method: "DELETE", url: urlOf(key), headers: { "If-Match": `"${etag}"` } },
        `state rm ${here().words} ${quoted(key)}`,
        `${here().handle}.delete(${JSON.stringify(key)})`,
      ),
    });
  },
  "clear-state": async () => {
    const { state, which } = document.getElementById("state").dataset;
    const { entries, after } = await ask("GET", `${state}?${which}&limit=1000`);
    const url = `${state}?${which}`;
    const ways = () => waysOf({ method: "DELETE", url }, `state clear ${here().words} --yes`, `${here().handle}.clear()`);
    empty("this task instance", entries.length, after !== null, url, ways);
  },
  "clear-all": async ({ dataset }) => {
    const { found, more } = await ask("GET", dataset.count);
    empty(`all ${dataset.indexes} indexes`, found.length, more, dataset.url, () => waysOf({ method: "DELETE", url: dataset.url }));
  },
  restore: (button) => {
    const { key, revision, url, expires } = button.dataset;
    const when = expires === undefined ? "" : `,"expires_at":${expires ? JSON.stringify(expires) : "null"}`;
    const body = `{"revision":${revision}${when}}`;
    sure({
      title: `Restore revision ${revision}?`,
      text: "That version is written again, as a new revision. The value there now stays in the history.",
      yes: "Restore",
      act: async () => { await ask("POST", url, { body }); changed(); },
      ways: () => waysOf(
        { method: "POST", url, body },
        `state restore ${here().words} ${quoted(key)} ${revision}`,
        `${here().handle}.restore(${JSON.stringify(key)}, ${revision})`,
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
  const { state, which } = document.getElementById("state").dataset;
  return `${state}/${encodeURIComponent(key)}${which ? "?" + which : ""}`;
}

function open(entry, problem = "") {
  fill(entry);
  part("problem").textContent = problem;
  part("problem").hidden = !problem;
  document.getElementById("edit").showModal();
  part(entry ? "value" : "key").focus();
}

function fill(entry) {
  seen = entry && !entry.gone ? entry : null;
  part("title").textContent = entry ? `Edit ${entry.key}` : "Add a key";
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
  const wrong = text.trim() ? check(text) : { message: "a value is missing", at: 0 };
  said.textContent = wrong ? `${place(text, wrong.at)}: ${wrong.message}` : "valid JSON; it is stored digit for digit";
  said.classList.toggle("wrong", Boolean(wrong) && text.trim() !== "");
  part("save").disabled = Boolean(wrong);
  return !wrong;
}

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
  part("problem").hidden = true;
  if (!tell()) return;
  part("save").disabled = true;
  try {
    if (!part("key").value) throw new Error("The key is missing.");
    const { url, ...more } = request();
    await ask("PUT", url, more);
    document.getElementById("edit").close();
    changed();
  } catch (error) {
    if (error.status === 412) conflict(error.current);
    else {
      part("problem").textContent = error.message;
      part("problem").hidden = false;
    }
  } finally {
    part("save").disabled = false;
  }
}

function conflict(current) {
  theirs = current ?? { key: part("key").value, gone: true };
  const by = current?.writer;
  part("conflict-who").textContent = current
    ? `Revision ${current.revision}, written by ${by.kind === "task" ? `attempt ${by.attempt}` : `${by.kind} ${by.name ?? ""}`}. Nothing was overwritten.`
    : "It was deleted, or has expired. Nothing was written.";
  part("theirs").textContent = !current ? "(no value)" : current.masked ? "(masked)" : laidOut(current.value);
  part("yours").textContent = part("value").value;
  part("conflict").hidden = false;
  part("over").focus();
}
