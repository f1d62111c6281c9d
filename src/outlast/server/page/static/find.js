// Changing what was found: all of it in one commit, and only entries that are still as they were shown.

import { ask, quoted } from "./asking.js";
import { waysOf } from "./copy.js";
import { sure } from "./sure.js";
import { now } from "./times.js";

let section;

export function finding() {
  section = document.getElementById("found");
  section?.querySelector('[data-do="delete-found"]')?.addEventListener("click", remove);
  section?.querySelector('[data-do="expire-found"]')?.addEventListener("click", expire);
}

function remove() {
  const rows = [...section.querySelectorAll("tbody tr")];
  confirm(rows, "Delete", "Attempts that rely on them will not find them; their history stays.", rows.map((row) => ({
    row,
    operation: `{"op":"delete","key":${JSON.stringify(row.dataset.key)}}`,
    command: command("rm", row.dataset, [row.dataset.key]),
    line: `${handle(row.dataset)}.delete(${JSON.stringify(row.dataset.key)})`,
  })));
}

async function expire() {
  const rows = [...section.querySelectorAll("tbody tr:not([data-masked])")];
  const choice = document.getElementById("found-when");
  const when = moment(choice.value);
  const said = `They expire ${choice.selectedOptions[0].textContent}; masked entries are left out. Each is written again, as it is.`;
  try {
    const { found } = await ask("GET", section.dataset.again); // whole values, as text
    const texts = new Map(found.map(({ scope, entry }) => [`${scope.address} ${entry.key}`, entry.value]));
    const missing = rows.find((row) => !texts.has(which(row)));
    if (missing) throw new Error(`${which(missing)} is not there any more; search again.`);
    confirm(rows, "Set expiry of", said, rows.map((row) => change(row, texts.get(which(row)), when, choice.value)));
  } catch (error) {
    sure({ title: "This did not work", text: error.message, yes: "Try again", act: expire });
  }
}

function change(row, value, when, choice) {
  const { key, revision } = row.dataset;
  const span = choice === "never" ? " --retention never" : choice === "default" ? "" : ` --retention ${choice}d`;
  const retention = choice === "never" ? ", retention=outlast.NEVER_EXPIRE" : choice === "default" ? "" : `, retention=datetime.timedelta(days=${choice})`;
  return {
    row,
    operation: `{"op":"set","key":${JSON.stringify(key)},"value":${value},"expires_at":${when}}`,
    command: command("set", row.dataset, [key, value], ` --if-revision ${revision}${span}`),
    line: `${handle(row.dataset)}.compare_and_set(${JSON.stringify(key)}, json.loads(${JSON.stringify(value)}), revision=${revision}${retention})`,
  };
}

function command(verb, { kind, dag, run, task, index, item, name, uri }, more, options = "") {
  const made = (names, scope) => ({ verb: `state ${verb}`, names: [...names, ...more], options: `${scope}${options}` });
  if (kind === "asset") return made([], name === undefined ? `--asset-uri ${quoted(uri)}` : `--asset ${quoted(name)}`);
  if (item !== undefined) return made([`${dag}/${run}/${task}`], `--item ${quoted(item)}`);
  return made([`${dag}/${run}/${task}${index === "-1" ? "" : `/${index}`}`], "");
}

function handle({ kind, dag, run, task, index, item, name, uri }) {
  if (kind === "asset") return name === undefined ? `store.asset(uri=${JSON.stringify(uri)})` : `store.asset(${JSON.stringify(name)})`;
  const place = JSON.stringify(`${dag}/${run}/${task}${item !== undefined || index === "-1" ? "" : `/${index}`}`);
  return item === undefined ? `store.task(${place})` : `store.task(${place}, item=${JSON.stringify(item)})`;
}

const which = (row) => `${row.dataset.address} ${row.dataset.key}`;

function moment(choice) {
  if (choice === "never") return "null";
  return JSON.stringify(choice === "default" ? choice : new Date(now() + Number(choice) * 86400_000).toISOString());
}

function confirm(rows, verb, text, changes) {
  const list = rows.slice(0, 100).map((row) => `${row.dataset.address}: ${row.dataset.key}`);
  if (rows.length > 100) list.push(`and ${rows.length - 100} more`);
  const what = `${rows.length} ${rows.length === 1 ? "entry" : "entries"}`;
  const request = { method: "POST", url: section.dataset.commit, body: body(changes) };
  sure({
    title: `${verb} ${what}?`,
    text: `All of them or none: if one has changed since it was found, nothing is changed. ${text}`,
    list,
    yes: `${verb} ${what}`,
    act: async () => { await ask("POST", request.url, request); location.reload(); },
    ways: () => waysOf(request, changes.map((each) => each.command), changes.map((each) => each.line)),
  });
}

// A part a scope; every check comes before the first change, which is a new revision of its scope.
function body(changes) {
  const parts = new Map();
  for (const { row: { dataset }, operation } of changes) {
    if (!parts.has(dataset.address)) parts.set(dataset.address, { scope: scope(dataset), checks: [], operations: [] });
    const part = parts.get(dataset.address);
    part.checks.push(`{"op":"check","key":${JSON.stringify(dataset.key)},"revision":${dataset.revision}}`);
    part.operations.push(operation);
  }
  const texts = [...parts.values()].map((part) =>
    `{"scope":${JSON.stringify(part.scope)},"operations":[${[...part.checks, ...part.operations].join(",")}]}`);
  return `{"parts":[${texts.join(",")}]}`;
}

function scope({ kind, dag, run, task, index, item, name, uri }) {
  if (kind === "asset") return { kind, ...(name === undefined ? {} : { name }), ...(uri === undefined ? {} : { uri }) };
  const place = { kind, dag_id: dag, run_id: run, task_id: task };
  return item === undefined ? { ...place, map_index: Number(index) } : { ...place, item };
}
