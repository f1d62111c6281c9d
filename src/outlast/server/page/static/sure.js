// Asks before something that cannot be taken back lightly.

import { offer } from "./copy.js";
import { plain } from "./exact.js";

let questions = 0;

// `risky`: something is lost by it.
export function sure({ title, text, list = [], yes, act, ways, risky = true }) {
  const question = ++questions;
  const dialog = document.getElementById("sure");
  const part = (name) => document.getElementById(`sure-${name}`);
  part("title").textContent = plain(title);
  part("text").textContent = plain(text);
  part("list").replaceChildren(...list.map((each) => Object.assign(document.createElement("li"), { textContent: plain(each) })));
  part("problem").hidden = true;
  offer(dialog, ways);
  const button = part("yes");
  button.textContent = yes;
  button.className = risky ? "danger" : "main";
  button.disabled = false;
  button.onclick = async () => {
    button.disabled = true;
    try {
      await act();
      if (question === questions) dialog.close(); // else what was done has asked anew
    } catch (error) {
      part("problem").textContent = error.message;
      part("problem").hidden = false;
      button.disabled = false;
    }
  };
  if (!dialog.open) dialog.showModal();
}
