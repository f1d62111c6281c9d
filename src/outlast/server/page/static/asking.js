// The way to the public API: the same routes as for everybody, with the session's cookie.

import { read } from "./exact.js";

export class Refused extends Error {
  constructor(status, told) {
    super(told?.detail ?? `the server answered ${status}`);
    this.status = status;
    this.current = told?.current;
  }
}

export async function ask(method, url, { body, headers } = {}) {
  let answer;
  try {
    answer = await fetch(url, { method, body, headers: { ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers } });
  } catch {
    throw new Refused(0, { detail: "The server does not answer. Nothing is known to be changed; look again before you repeat it." });
  }
  const text = await answer.text();
  let told = null;
  try {
    told = text ? read(text) : null;
  } catch { /* not of the API: its status says enough */ }
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

export const changed = () => document.dispatchEvent(new CustomEvent("outlast:changed"));

export const quoted = (text) => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

export function curl(method, url, { body, headers = {} } = {}) {
  const words = ["curl", "-X", method, "-H", '"Authorization: Bearer $OUTLAST_TOKEN"'];
  for (const [name, value] of Object.entries(headers)) words.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) words.push("-H", quoted("Content-Type: application/json"), "-d", quoted(body));
  return [...words, quoted(new URL(url, location.href).href)].join(" ");
}
