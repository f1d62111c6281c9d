// Texts to copy: buttons that have one, and the ways to do elsewhere what is done here.

import { curl, quoted } from "./asking.js";

export async function copy(button, text) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    (button.closest("dialog") ?? document.body).append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Select and copy";
    area.remove();
  }
  setTimeout(() => { button.textContent = said; }, 1500);
}

export function copyButtons() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button, button.dataset.copy);
  });
}

// A command; its options come first where a name could be taken for one.
export function command({ verb, names, options = "" }) {
  const more = `${options} --store ${quoted(document.body.dataset.server)}`.trim();
  const words = names.map(quoted).join(" ");
  return `outlast ${verb} ${names.some((name) => name.startsWith("-")) ? `${more} -- ${words}` : `${words} ${more}`.trim()}`;
}

// Three texts that do the same: a request, a command (or several), and what a program does with a `store`.
export function waysOf(request, commands = [], lines = []) {
  const { server } = document.body.dataset;
  const ways = { curl: curl(request.method, request.url, request) };
  const typed = [commands].flat().map(command);
  if (typed.length) ways.line = typed.join(" &&\n");
  const text = [lines].flat().join("\n    ");
  const imports = ["datetime", "json", "outlast"].filter((name) => name === "outlast" || text.includes(`${name}.`));
  if (text) ways.python = `${imports.map((name) => `import ${name}\n`).join("")}\nwith outlast.connect(${JSON.stringify(server)}) as store:\n    ${text}\n`;
  return ways;
}

// Offers them in a dialog; `make` returns them, or null while there is nothing to be done.
export function offer(dialog, make) {
  const place = dialog.querySelector(".ways");
  place.hidden = !make;
  for (const button of place.querySelectorAll("[data-way]")) {
    const ways = make?.();
    button.hidden = Boolean(ways) && !(button.dataset.way in ways);
    button.onclick = () => {
      const text = make?.()?.[button.dataset.way];
      if (text) copy(button, text);
    };
  }
}
