// Running a task instance again: what is kept, what the next attempt will see, what is cleared, and the command to type.

import { ask, changed, quoted } from "./asking.js";
import { command, copy, waysOf } from "./copy.js";
import { sure } from "./sure.js";

let form;

export function retrying() {
  form = document.getElementById("retry");
  if (!form) return;
  form.addEventListener("change", preview);
  document.addEventListener("outlast:put", preview);
  form.addEventListener("submit", (event) => { event.preventDefault(); begin(); });
  document.getElementById("retry-copy").addEventListener("click", (event) => copy(event.target, command(typed())));
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
  document.getElementById("retry-command").textContent = command(typed());
  document.getElementById("retry-then").textContent = foretell();
}

// What the next attempt does then, as far as the keys tell.
function foretell() {
  const { would, because } = document.getElementById("retry-keys").dataset; // put in anew with the keys
  if (keeps() === "discard") return "Then it begins from the start: nothing is kept, and a job that still runs elsewhere is forgotten.";
  const gone = forgotten();
  if (gone.includes(because)) return `Then it does not find ${because}, and begins as if that had not been.`;
  return gone.length === form.querySelectorAll("input[data-key]").length && gone.length ? "Then it begins from the start." : `Then it ${would}.`;
}

const forgotten = () => (keeps() === "some" ? unticked().map((box) => box.dataset.key) : []);

// The command that does the same.
function typed() {
  const { index, address } = form.dataset;
  const name = all() && index !== "-1" ? address.slice(0, -index.length - 1) : address;
  const keys = forgotten().map((key) => ` --forget ${quoted(key)}`).join("");
  return { verb: "tasks clear", names: [name], options: `${keeps() === "discard" ? "--discard-state" : "--keep-state"}${keys}` };
}

function body(dry) {
  const { task, index } = form.dataset;
  const which = index === "-1" || all() ? JSON.stringify(task) : `[${JSON.stringify(task)},${index}]`;
  return `{"tasks":[${which}],"keep_state":${keeps() !== "discard"},"forget":${JSON.stringify(forgotten())},"dry_run":${dry}}`;
}

function ways() {
  const { dag, run, task, index } = form.dataset;
  const which = index === "-1" || all() ? JSON.stringify(task) : `(${JSON.stringify(task)}, ${index})`;
  const names = `${JSON.stringify(dag)}, ${JSON.stringify(run)}, [${which}]`;
  const more = `discard=${keeps() === "discard" ? "True" : "False"}, forget=${JSON.stringify(forgotten())}`;
  return waysOf({ method: "POST", url: form.dataset.clear, body: body(false) }, typed(), `store.runs_as(outlast.Writer("person")).clear(${names}, ${more})`);
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

const named = ({ task_id: task, map_index: index }) => (index < 0 ? task : `${task}[${index}]`);

function confirm(touched) {
  const gone = forgotten();
  const what = { keep: "What is stored stays.", discard: "What is stored is deleted. A job that still runs elsewhere is forgotten, not cancelled.", some: gone.length ? `Deleted in the same step: ${gone.join(", ")}. Their history stays.` : "Every key is kept." }[keeps()];
  const running = touched.some((each) => each.state === "running") ? " An attempt that runs is stopped." : "";
  sure({
    title: `Run ${touched.length === 1 ? named(touched[0]) : `${touched.length} task instances`} again?`,
    text: `${what}${running} ${touched.length === 1 ? foretell() + " " : ""}What waits for them runs again only where it is listed.`,
    risky: keeps() === "discard" || gone.length > 0,
    list: touched.slice(0, 50).map((each) => `${named(each)}: ${each.state}`).concat(touched.length > 50 ? [`and ${touched.length - 50} more`] : []),
    yes: "Run again",
    act: async () => {
      await ask("POST", form.dataset.clear, { body: body(false) });
      dropped = new Set();
      form.elements.keep.value = "keep";
      preview();
      changed();
    },
    ways,
  });
}
