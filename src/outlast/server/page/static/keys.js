// The keyboard: / finds, arrows move, Enter opens, e edits, ? explains.

const ROWS = ".rows tbody tr[tabindex]";

export function keyboard() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    if (opener) document.getElementById(opener.dataset.open).showModal();
    if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input, textarea, select")) return;
    const act = ACTS[event.key];
    if (act && act(event.target) !== false) event.preventDefault();
  });
}

const ACTS = {
  "/": () => document.getElementById("jump").focus(),
  "?": () => document.getElementById("help").showModal(),
  e: (target) => press(target.closest("tr")?.querySelector('[data-do="edit"]')),
  Enter: (target) => (target.matches(ROWS) ? press(target.querySelector("a[href]")) : false),
  ArrowDown: (target) => move(target, 1, true),
  ArrowUp: (target) => move(target, -1, true),
  ArrowRight: (target) => move(target, 1, false),
  ArrowLeft: (target) => move(target, -1, false),
};

function press(what) {
  if (!what) return false;
  what.click();
  return true;
}

function move(target, by, vertical) {
  const square = target.closest(".square");
  if (square) return among(square, vertical ? by * perLine(square.parentElement) : by, [...square.parentElement.children]);
  if (!vertical) return false;
  const row = target.closest(ROWS), rows = [...document.querySelectorAll(ROWS)];
  if (!row && !target.matches("html, body, #main, dialog *")) return false; // a dialog just closed may still have the focus
  return row ? among(row, by, rows) : (rows[0]?.focus(), rows.length > 0);
}

function among(here, by, all) {
  const next = all[all.indexOf(here) + by];
  if (!next) return true;
  if (here.matches(".square")) {
    here.tabIndex = -1;
    next.tabIndex = 0;
  }
  next.focus();
  return true;
}

function perLine(grid) {
  const top = grid.firstElementChild.offsetTop;
  const other = [...grid.children].findIndex((each) => each.offsetTop !== top);
  return other < 0 ? grid.children.length : other;
}
