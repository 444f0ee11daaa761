// The stream of events, what is looked at, and the keys.

import { clock, duration, follow, h, morph, point } from "./drawing.js";
import { open } from "./control.js";
import { LISTS, PAGE, group, partition, partitionLink, recordLink, records, waiting } from "./views.js";

const HISTORY_MAX = 600;
const QUIET_S = 5; // without news for so long, say so
const $ = (id) => document.getElementById(id);

const view = { order: "remaining", text: "", start: 0 };
let where = { kind: "group" };
let stream = null, look = null, history = [], heardAt = 0, held = false;

// -- what is looked at: the part of the address after # ---------------------------------------------

function whereOf(hash) {
  const [, kind, ...parts] = hash.split("/");
  let names;
  try { names = parts.map(decodeURIComponent); } catch { return { kind: "group" }; }
  if (kind === "partition" && names.length === 2) return { kind, topic: names[0], partition: Number(names[1]) };
  if (kind === "record" && names.length === 3) {
    return { kind, topic: names[0], partition: Number(names[1]), offset: Number(names[2]) };
  }
  if (Object.hasOwn(LISTS, kind) && !names.length) return { kind, list: LISTS[kind].list };
  return kind === "key" && names.length === 1 ? { kind, key: names[0] } : { kind: "group" };
}

function query() {
  const asked = new URLSearchParams();
  if (where.kind === "group") {
    asked.set("order", view.order);
    asked.set("text", view.text);
    asked.set("start", view.start);
    asked.set("count", PAGE);
  }
  for (const name of ["topic", "partition", "offset", "key", "list"]) {
    if (where[name] !== undefined) asked.set(name, where[name]);
  }
  return asked;
}

// -- the stream -------------------------------------------------------------------------------------

function listen() {
  if (stream) stream.close();
  stream = new EventSource(`events?${query()}`);
  stream.addEventListener("history", (event) => { history = JSON.parse(event.data); });
  stream.addEventListener("refused", (event) => {
    stream.close();
    alarm(JSON.parse(event.data));
  });
  stream.addEventListener("look", (event) => {
    heardAt = Date.now() / 1000;
    const came = JSON.parse(event.data);
    if (came.sample && (!history.length || history.at(-1).at < came.sample.at)) {
      history.push(came.sample);
      history.splice(0, history.length - HISTORY_MAX);
    }
    look = came;
    if (!held) show();
    live();
  });
}

function alarm(text) {
  $("alarm").hidden = !text;
  if ($("alarm").textContent !== text) $("alarm").textContent = text;
}

function live() {
  const silent = heardAt ? Date.now() / 1000 - heardAt : 0;
  const gone = silent > QUIET_S;
  $("main").classList.toggle("stale", gone);
  const dot = document.querySelector("#live .dot");
  dot.className = `dot ${gone ? "bad" : held ? "warn" : heardAt ? "good" : ""}`;
  const silentMembers = look ? look.members.filter((one) => one.silent_s) : [];
  if (gone) {
    alarm(`No answer since ${clock(heardAt)} (${duration(silent)}): the process has ended or is unreachable. This page shows its last report.`);
    $("live-text").textContent = "no answer";
    if (stream.readyState === EventSource.CLOSED) listen();
  } else if (heardAt) {
    const names = silentMembers.map((one) => `${one.member} for ${duration(one.silent_s)}`).join(", ");
    alarm(names ? `No report from: ${names}.` : "");
    $("live-text").textContent = held ? "frozen" : `live ${clock(look.now)}`;
  }
}

function show() {
  if (!look) return;
  const shown = where.kind === "group" ? group(look, history, view)
    : where.list ? waiting(look, where.kind)
    : where.kind === "partition" ? partition(look, where) : records(look, where);
  const fresh = h("main", { id: "main", tabindex: "-1", class: $("main").getAttribute("class") }, shown);
  morph($("main"), fresh);
  follow();
  $("group").textContent = `group ${look.group}`;
  document.title = `${look.totals.parked ? `(${look.totals.parked}) ` : ""}${look.group} – Perkey`;
}

function go() {
  where = whereOf(location.hash);
  scrollTo(0, 0);
  if (look) look = { ...look, picture: undefined, found: undefined };
  if (where.kind === "group") show();
  listen();
}

function change(what) {
  Object.assign(view, { start: 0 }, what);
  listen();
}

// -- mouse and keys ---------------------------------------------------------------------------------

function find(text) {
  const key = /^key=(.*)$/s.exec(text), parts = /^(.+?):(\d+)(?::(\d+))?$/.exec(text);
  if (key) location.hash = `#/key/${encodeURIComponent(key[1])}`;
  else if (parts && parts[3]) location.hash = recordLink({ topic: parts[1], partition: parts[2], offset: parts[3] });
  else if (parts) location.hash = partitionLink({ topic: parts[1], partition: parts[2] });
  else {
    location.hash = "#/";
    change({ text });
    const filter = $("text");
    if (filter) filter.value = text;
  }
}

function step(by) {
  const links = [...document.querySelectorAll("main tr[data-href] a, main summary")];
  const at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))];
  if (next) next.focus();
}

const KEYS = {
  "/": () => { $("where").focus(); $("where").select(); },
  "?": () => $("keys").showModal(),
  j: () => step(1),
  k: () => step(-1),
  g: () => { location.hash = "#/"; },
  r: () => { location.hash = "#/parked"; },
  d: () => { location.hash = "#/held"; },
  t: () => theme(true),
  n: () => $("next") && $("next").click(),
  p: () => $("previous") && $("previous").click(),
  " ": () => { held = !held; if (!held) show(); live(); },
  Escape: () => { if (where.kind !== "group") window.history.back(); },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === " " && event.target.matches("button, summary, pre")) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

document.addEventListener("click", (event) => {
  const { target } = event;
  if (target.id === "previous") change({ start: Math.max(0, view.start - PAGE) });
  else if (target.id === "next") change({ start: view.start + PAGE });
  else if (target.id === "theme") theme(true);
  else if (target.id === "help") $("keys").showModal();
  else if (target.closest("button.copy")) copy(target.closest("button.copy"));
  else if (target.closest("button.act")) open(target.closest("button.act"));
  else if (!target.closest("a, summary, button") && !String(getSelection())) {
    const row = target.closest("tr[data-href]");
    if (row) location.hash = row.dataset.href;
  }
});

// The clipboard is there on loopback and over TLS alone; else the command is selected, to be copied.
async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.dataset.copied = "yes";
    setTimeout(() => { delete button.dataset.copied; }, 1500);
  } catch {
    getSelection().selectAllChildren(code);
  }
}

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => point(null));
document.addEventListener("input", (event) => {
  if (event.target.id === "text") change({ text: event.target.value.trim() });
  if (event.target.id === "order") change({ order: event.target.value });
});

// Else its button would have the next key.
$("keys").addEventListener("close", () => document.activeElement.blur());

$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("where").value.trim();
  $("where").blur();
  if (text) find(text);
});

// -- light and dark ---------------------------------------------------------------------------------

const remembered = () => { try { return localStorage.getItem("perkey-theme"); } catch { return null; } };
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function theme(other) {
  let now = remembered() || (prefersDark.matches ? "dark" : "light");
  if (other) {
    now = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("perkey-theme", now); } catch { /* a private window forgets it */ }
  }
  document.documentElement.dataset.theme = now;
}

prefersDark.addEventListener("change", () => theme(false));
window.addEventListener("hashchange", go);
setInterval(live, 1000);
theme(false);
go();
