// Keeps a page as the store is: listens for changes, then looks at the page anew and puts in what is different.
// While the stream is broken it looks every few seconds. So nothing is missed: what is shown is always a whole look.

import { read } from "./exact.js";
import { compare } from "./times.js";

const LEAST_PAUSE = 700, WHILE_BROKEN = 3000, LONGEST_PRESS = 5000;
const SCROLLED = ".scroll, .keys-list, pre";
const mark = document.getElementById("live");
const { root, events, poll } = document.body.dataset;

let show, source = null, opened = 0, pressed = -Infinity, streaming = false, looking = false, wanted = false, pause = LEAST_PAUSE, timer = 0, looked = 0, ended = false;
const shown = new Map(); // the text of each part, as the server last gave it

function say(is, why = "") {
  if (mark.dataset.is === is) return;
  mark.dataset.is = is;
  mark.textContent = is;
  mark.title = why;
}

export function live(showTimes) {
  show = showTimes;
  if (!mark) return;
  if (events === undefined) say("live", `looks every ${poll} s`);
  else listen();
  window.addEventListener("pointerdown", () => { pressed = performance.now(); }, true);
  for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => { pressed = -Infinity; }, true);
  document.addEventListener("visibilitychange", () => (document.hidden ? quiet() : wake()));
  window.addEventListener("online", wake);
  document.addEventListener("outlast:changed", () => look());
  tick();
}

// --- The stream ---

function listen() {
  if (source || ended || document.hidden) return; // a browser has six connections to a server, for all its tabs
  source = new EventSource(`${root}/api/outlast/v1/events${events ? "?" + events : ""}`);
  opened = performance.now();
  source.addEventListener("position", () => { // its first event: what is on the way may keep events back
    streaming = true;
    look(); // what happened while nobody listened
  });
  source.addEventListener("error", () => {
    quiet();
    setTimeout(listen, WHILE_BROKEN);
    broken();
  });
  source.addEventListener("run", soon);
  source.addEventListener("reset", soon);
  source.addEventListener("entry", (event) => concerns(event.data) && soon());
}

const broken = () => say("reconnecting", "the stream of changes broke off, or tells nothing; the page looks for itself meanwhile");

function concerns(text) {
  const { task, index } = document.getElementById("state")?.dataset ?? {};
  if (task === undefined) return true;
  const { scope } = read(text);
  return scope.task_id === task && String(scope.map_index) === index;
}

function quiet() {
  source?.close();
  source = null;
  streaming = false;
}

function wake() {
  ended = false; // somebody may have logged in again
  if (events !== undefined) listen();
  look();
}

function tick() {
  setInterval(() => {
    const now = performance.now(), due = events !== undefined && !streaming ? 0 : Number(poll) * 1000;
    if (document.hidden || ended || now - looked < due) return;
    if (source && now - opened > (streaming ? due : 10 * WHILE_BROKEN)) { // so long silent, it may be deaf, as after a sleep
      quiet();
      listen();
    }
    look();
  }, WHILE_BROKEN);
}

// --- Looking anew ---

function soon() {
  if (!timer) timer = setTimeout(() => { timer = 0; look(); }, pause);
}

async function look() {
  if (looking) { wanted = true; return; }
  looking = true;
  const began = looked = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(15000) });
    if (answer.status === 401) return over();
    ended = false;
    if (answer.status === 404) return say("gone", "this is not there any more; what you see is how it was");
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    while (performance.now() - pressed < LONGEST_PRESS) await new Promise((done) => setTimeout(done, 100)); // or a click is lost
    compare(fresh.body.dataset.now);
    put(fresh);
    if (streaming || events === undefined) say("live");
    else if (mark.dataset.is !== "starting" || performance.now() - opened > WHILE_BROKEN) broken();
  } catch (error) {
    say("stale", "the server does not answer; what you see may be old");
    looked = -Infinity; // look again soon, whether or not the stream is there
  } finally {
    looking = false;
    pause = Math.max(LEAST_PAUSE, 3 * (performance.now() - began)); // a page that is dear is looked at less often
    if (wanted) { wanted = false; soon(); }
  }
}

function over() {
  ended = true;
  quiet();
  say("logged out", "what you see may be old");
  const link = Object.assign(document.createElement("a"), { href: `${root}/login`, textContent: "log in again" });
  mark.replaceChildren("logged out: ", link);
}

function put(fresh) {
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const there = document.getElementById(part.id);
    const text = part.outerHTML;
    if (!there || shown.get(part.id) === text || isSelected(there)) continue;
    const first = !shown.has(part.id);
    shown.set(part.id, text);
    show(part);
    if (first && there.outerHTML === part.outerHTML) continue;
    replace(there, part);
  }
  document.dispatchEvent(new CustomEvent("outlast:put"));
}

function replace(there, part) {
  const place = whereIs(there), open = [...there.querySelectorAll("details[open][id]")].map((each) => each.id);
  const within = (each) => [each, ...each.querySelectorAll(SCROLLED)];
  const scrolled = within(there).map((each) => [each.scrollLeft, each.scrollTop]);
  there.replaceWith(part);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  within(part).forEach((each, index) => { [each.scrollLeft, each.scrollTop] = scrolled[index] ?? [0, 0]; });
  if (place) part.querySelector(place)?.focus({ preventScroll: true });
}

// A part in which somebody has marked text stays until they have not.
function isSelected(part) {
  const selection = getSelection();
  return !selection.isCollapsed && part.contains(selection.anchorNode);
}

function whereIs(part) {
  const active = document.activeElement;
  if (!active || active === part || !part.contains(active)) return null;
  const names = ["data-do", "data-key", "href", "id", "data-revision", "aria-label"].filter((name) => active.hasAttribute(name));
  return active.localName + names.map((name) => `[${name}="${CSS.escape(active.getAttribute(name))}"]`).join("");
}
