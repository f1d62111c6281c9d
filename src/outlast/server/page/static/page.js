// Brings a page that the server has rendered to life; each module does one thing, and each page has what it needs.

import { copyButtons } from "./copy.js";
import { editing } from "./edit.js";
import { finding } from "./find.js";
import { keyboard } from "./keys.js";
import { live } from "./live.js";
import { retrying } from "./retry.js";
import { steering } from "./run.js";
import { times } from "./times.js";

// What is not filled in is not in the URL.
document.addEventListener("formdata", (event) => {
  for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
});

const started = times();
keyboard();
copyButtons();
editing();
retrying();
steering();
finding();
live(started);
