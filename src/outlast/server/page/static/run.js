// Steering a whole run: run again what has failed, or cancel what has not ended.

import { ask, changed } from "./asking.js";
import { waysOf } from "./copy.js";
import { sure } from "./sure.js";

export function steering() {
  document.addEventListener("click", (event) => {
    const act = ACTS[event.target.closest("#steer [data-do]")?.dataset.do];
    if (act) act(document.getElementById("steer").dataset);
  });
}

const ACTS = {
  "clear-failed": ({ api, tasks, again }) => {
    const request = { method: "POST", url: `${api}/clear`, body: `{"tasks":${tasks},"keep_state":true}` };
    sure({
      title: "Run again what has failed?",
      text: "What they have stored stays: each goes on where it was, or finds its job. What gave up because of them is run as well. To discard state, choose it at the task.",
      yes: "Run again",
      risky: false,
      act: async () => { await ask("POST", request.url, request); changed(); },
      ways: () => ({ ...waysOf(request), line: again }),
    });
  },
  "cancel-run": ({ api, name, cancel }) => {
    const request = { method: "POST", url: `${api}/cancel` };
    sure({
      title: `Cancel ${name}?`,
      text: "Attempts that run are fenced and stopped, what waits is cancelled. State is kept, so it can be run again from where it was.",
      yes: "Cancel the run",
      act: async () => { await ask("POST", request.url); changed(); },
      ways: () => ({ ...waysOf(request), line: cancel }),
    });
  },
};
