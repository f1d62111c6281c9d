// Moments in the viewer's own time zone, as "5 s ago"; exact UTC is the title the server gave.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const CLOCK = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

// How far the server's clock is ahead of this machine's, in milliseconds.
let ahead = 0;

// Compare again with each look: a clock may be set, or jump where a machine has slept.
export function compare(theirs) {
  const found = Date.parse(theirs) - Date.now();
  ahead = Math.abs(found) < 2000 ? 0 : found;
}

export const now = () => Date.now() + ahead;

export function span(seconds) {
  let rest = Math.max(0, Math.floor(seconds));
  const parts = [];
  for (const [length, unit] of UNITS) {
    if (rest >= length && parts.length < 2) {
      parts.push(`${Math.floor(rest / length)} ${unit}`);
      rest %= length;
    } else if (parts.length) break;
  }
  return parts.join(" ") || "0 s";
}

export const local = (text) => CLOCK.format(new Date(text));

const SHOWN = {
  at: (moment) => CLOCK.format(moment),
  ago: (moment, seconds) => (seconds < 1 ? "now" : seconds < 7 * 86400 ? `${span(seconds)} ago` : CLOCK.format(moment)),
  until: (moment, seconds) => (seconds < 0 ? `in ${span(-seconds)}` : `${span(seconds)} ago`),
  elapsed: (_, seconds) => span(seconds),
};

export function show(root) {
  for (const time of root.querySelectorAll("time[data-how]")) {
    const moment = Date.parse(time.dateTime);
    const text = SHOWN[time.dataset.how](moment, (now() - moment) / 1000);
    if (time.textContent !== text) time.textContent = text;
  }
  for (const bar of root.querySelectorAll(".progress[data-at]")) {
    const quiet = (now() - Date.parse(bar.dataset.at)) / 1000;
    const progress = bar.querySelector("progress");
    const unfinished = !progress || progress.value < progress.max;
    bar.classList.toggle("stalled", unfinished && quiet > Number(bar.dataset.patience));
  }
}

export function times() {
  compare(document.body.dataset.now);
  show(document);
  setInterval(() => document.hidden || show(document), 1000);
  return show;
}
