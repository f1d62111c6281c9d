// Running a task instance again: what is kept, what the next attempt will see, what is cleared, and the command to type.

import { ask, changed } from "./asking.js";
import { copy } from "./copy.js";
import { sure } from "./sure.js";

let form;

export function retrying() {
  form = document.getElementById("retry");
  if (!form) return;
  form.addEventListener("change", preview);
  document.addEventListener("outlast:put", preview);
  form.addEventListener("submit", (event) => { event.preventDefault(); begin(); });
  document.getElementById("retry-copy").addEventListener("click", (event) => copy(event.target, command()));
  preview();
}

const keeps = () => form.elements.keep.value;
const all = () => form.elements.all?.value === "all";
const unticked = () => [...form.querySelectorAll("input[data-key]:not(:checked)")];

let dropped = new Set(); // the keys that are not to be kept; the list is put in anew while one chooses

function preview(event) {
  if (event?.target?.dataset?.key) {
    const { key } = event.target.dataset;
    if (event.target.checked) dropped.delete(key);
    else dropped.add(key);
  }
  for (const box of form.querySelectorAll("input[data-key]")) {
    box.disabled = keeps() !== "some";
    box.checked = keeps() === "keep" || (keeps() === "some" && !dropped.has(box.dataset.key));
    box.nextElementSibling.classList.toggle("away", !box.checked);
  }
  if (form.elements.all) {
    for (const radio of form.elements.all) radio.disabled = keeps() === "some" && radio.value === "all";
    if (keeps() === "some") form.elements.all.value = "one";
  }
  document.getElementById("retry-command").textContent = command();
}

// The command that does the same; with chosen keys it takes two.
function command() {
  const { index } = form.dataset;
  let text = form.dataset.command;
  const address = form.dataset.address;
  if (all() && index !== "-1") text = text.replace(address, address.slice(0, -index.length - 1));
  const clear = `${text} ${keeps() === "discard" ? "--discard-state" : "--keep-state"}`;
  if (keeps() !== "some" || !unticked().length) return clear;
  const keys = unticked().map((box) => `'${box.dataset.key.replaceAll("'", "'\\''")}'`).join(" ");
  return `${text.replace("tasks clear", "state rm").replace(" --store", ` ${keys} --store`)} && ${clear}`;
}

function body(dry) {
  const { task, index } = form.dataset;
  const which = index === "-1" || all() ? JSON.stringify(task) : `[${JSON.stringify(task)},${index}]`;
  return `{"tasks":[${which}],"keep_state":${keeps() !== "discard"},"dry_run":${dry}}`;
}

async function begin() {
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  try {
    const { task_instances: touched } = await ask("POST", form.dataset.clear, { body: body(true) });
    confirm(touched);
  } catch (error) {
    sure({ title: "This cannot be cleared", text: error.message, yes: "Try again", act: begin });
  } finally {
    button.disabled = false;
  }
}

function confirm(touched) {
  const gone = keeps() === "some" ? unticked() : [];
  const what = { keep: "What they have stored stays.", discard: "What they have stored is deleted: they begin from the start. A job that still runs elsewhere is forgotten, not cancelled.", some: gone.length ? `Deleted first: ${gone.map((box) => box.dataset.key).join(", ")}.` : "Every key is kept." }[keeps()];
  const running = touched.some((each) => each.state === "running") ? " An attempt that runs is stopped." : "";
  sure({
    title: `Run ${touched.length} task instance${touched.length === 1 ? "" : "s"} again?`,
    text: what + running,
    list: touched.slice(0, 50).map((each) => `${each.task_id}${each.map_index < 0 ? "" : `[${each.map_index}]`}: ${each.state}`).concat(touched.length > 50 ? [`and ${touched.length - 50} more`] : []),
    yes: "Run again",
    act: async () => {
      for (const box of gone) await drop(box.dataset.key);
      await ask("POST", form.dataset.clear, { body: body(false) });
      dropped = new Set();
      form.elements.keep.value = "keep";
      preview();
      changed();
    },
  });
}

const drop = (key) => ask("DELETE", `${form.dataset.state}/${encodeURIComponent(key)}?${form.dataset.which}`);
