// Commands: a dry run first, then a reason, then the answer of each member.

import { h } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const WORDS = {
  pause: "Pause", resume: "Resume", set: "Set", hold: "Hold", release: "Release", retry: "Retry now", skip: "Skip",
  export: "Export",
};
// Commands with a time; what a record offers where it is.
const TIMED = ["pause", "set", "hold"];
const OFFERED = {
  parked: ["release", "skip", "export"], on_hold: ["release", "skip", "export"], retrying: ["retry", "hold", "skip", "export"],
  ready: ["hold"],
};
const same = (one, other) => (one ?? null) === (other ?? null);
let order = null;

function about({ action, topic, handler, key, records, where }) {
  if (where) return `all of ${topic} where ${where}`;
  if (records) return `record ${topic}[${records[0][0]}] ${records[0][1]}`;
  if (key !== undefined) return `key ${key} of ${topic}`;
  if (action === "export") return `all that is parked or held of ${topic}`;
  return topic ? `topic ${topic}` : handler ? `handler ${handler}` : "everything";
}

function button(action, target, word = WORDS[action]) {
  return h("button", { type: "button", class: "act", "data-order": JSON.stringify({ action, ...target }) },
    target.topic || target.handler ? word : `${word} everything`);
}

// Pause, or resume where a command has paused just this; nothing unless the server allows commands.
export function acts(look, target, more = []) {
  if (!look.control) return null;
  const paused = look.halts.some((halt) => halt.cause === "command"
    && same(halt.topic, target.topic) && same(halt.handler, target.handler));
  return h("span", { class: "acts" }, [paused ? "resume" : "pause", ...more].map((one) => button(one, target)));
}

// Of one record, and of its key; one that is no text, or was cut, cannot be named here.
export function recordActs(look, row) {
  if (!look.control) return null;
  const one = { topic: row.topic, records: [[row.partition, row.offset]] };
  const offered = (OFFERED[row.place] || []).map((action) => button(action, one));
  if (typeof row.key === "string" && !row.key.includes("\\") && !row.key.endsWith("…")) {
    const lane = { topic: row.topic, key: row.key };
    const release = button("release", lane, "Release key");
    if (row.place === "on_hold") offered.unshift(release);  // held by its key, it alone cannot be released
    else offered.push(button("hold", lane, "Hold key"), release);
    if (["parked", "on_hold"].includes(row.place)) offered.push(button("export", lane, "Export key"));
  }
  return offered.length ? h("p", { class: "acts" }, offered) : null;
}

// Release all that is parked alike: one button for each topic and type of error among these.
export function releaseAlike(look, rows) {
  if (!look.control) return null;
  const kinds = new Map(rows.map((row) => {
    const type = row.last_error && row.last_error.type;
    return [`${row.topic} ${type}`, { topic: row.topic, type }];
  }));
  const named = [...kinds.values()].filter(({ type }) => !type || /^[\w.]+$/.test(type));
  return h("p", { class: "acts" }, named.map(({ topic, type }) => button("release", {
    topic, where: `state == "parked" and error.type == ${type ? `"${type}"` : "null"}`,
  }, `Release all ${type ? `after ${type}` : "with an unknown error"}: ${topic}`)));
}

// Export what is parked or held: one button for each topic of these.
export function exportAll(look, rows) {
  return h("p", { class: "acts" }, [...new Set(rows.map((row) => row.topic))].map((topic) =>
    button("export", { topic }, `Export all: ${topic}`)));
}

// Longer than the process takes for any answer; a process that is suspended gives none.
const LIMITS_S = { control: 30, replay: 30, export: 120 };

// What a path answers to a JSON object; an Error in its words.
export async function post(path, given) {
  let answer, told;
  try {
    // Without the user and password of an address like http://any:TOKEN@host: fetch refuses those.
    answer = await fetch(new URL(path, location.origin + location.pathname), {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given),
      signal: AbortSignal.timeout(1000 * LIMITS_S[path]),
    });
    told = await answer.json();
  } catch (error) {
    if (error.name === "TimeoutError") throw new Error(`no answer within ${LIMITS_S[path]} s: it may be done all the same`);
    throw new Error(answer ? `HTTP ${answer.status}` : "no answer: the process has ended or is unreachable");
  }
  if (!answer.ok) throw new Error(told.error || `HTTP ${answer.status}`);
  return told;
}

// As a file of the browser's.
function save(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  const link = h("a", { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60000);
}

const BAD = ["refused", "no answer"], AWAY = ["no answer", "not here"];

// Each member's answer, and those that are known and did not give one.
async function answers(given) {
  const list = $("order-answers");
  list.replaceChildren(h("li", { class: "quiet" }, "asking…"));
  try {
    const told = await post(given.action === "export" ? "export" : "control", given);
    const heard = told.answers.map((one) => one.member);
    const rows = [...told.answers, ...told.members.filter((one) => !heard.includes(one)).map((member) => (
      { member, outcome: "no answer", detail: "it runs elsewhere: open its own page, or use the command there" }))];
    list.replaceChildren(...rows.map((one) => h("li", null, h("b", null, `${one.member}: `),
      h("span", { class: BAD.includes(one.outcome) ? "bad" : "" }, `${one.outcome}: ${one.detail}`))));
    if (told.lines) save(`${given.topic}.jsonl`, told.lines);
    return rows.every((one) => one.outcome !== "refused") && rows.some((one) => !AWAY.includes(one.outcome));
  } catch (error) {
    list.replaceChildren(h("li", { class: "bad" }, error.message));
    return false;
  }
}

function settings() {
  const given = {};
  for (const [name, id] of [["concurrency", "order-concurrency"], ["rate_limit_per_s", "order-rate"],
    ["timeout_s", "order-timeout"]]) {
    if ($(id).value) given[name] = Number($(id).value);
  }
  return given;
}

function given(rest) {
  const whole = { ...order, claimed_by: "page", for_s: Number($("order-for").value), ...rest };
  return order.action === "set" ? { ...whole, settings: settings() } : whole;
}

const look = () => answers(given({ reason: "dry run", dry_run: true }));

export function open(target) {
  order = JSON.parse(target.dataset.order);
  const set = order.action === "set";
  $("order-title").textContent = `${WORDS[order.action]} ${about(order)}`;
  $("order-settings").hidden = !set;
  $("order-time").hidden = !TIMED.includes(order.action);
  for (const id of ["order-reason", "order-concurrency", "order-rate", "order-timeout"]) $(id).value = "";
  $("order-go").disabled = set;
  $("order-close").textContent = "Cancel";
  $("order-answers").replaceChildren();
  $("command").showModal();
  $("order-reason").focus();
  if (!set) look();
}

$("order-settings").addEventListener("change", async () => {
  $("order-go").disabled = !Object.keys(settings()).length || !await look();
});
$("order-close").addEventListener("click", () => $("command").close());
$("command").addEventListener("close", () => document.activeElement.blur());
$("order-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("order-go").disabled = true;
  const obeyed = await answers(given({ reason: $("order-reason").value }));
  $("order-go").disabled = obeyed;
  if (obeyed) $("order-close").textContent = "Close";
});
