// The commands that the page shows: complete, to be copied into a terminal.

import { h } from "./drawing.js";

// The address of this page, without the user and password of http://any:TOKEN@host.
const here = () => (location.origin + location.pathname).replace(/\/$/, "");
const quoted = (text) => (/^[\w.:@%+=,/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
// A key that is no text, or was cut, cannot be named.
const named = (key) => typeof key === "string" && !key.includes("\\") && !key.endsWith("…");
const reach = (look) => look.reach || {};

// How `perkey why` and `perkey status` ask this process; and how a command reaches its members.
function asking(look) {
  const file = reach(look).token_file;
  return `--url ${here()}${file ? ` --token-file ${file}` : ""}`;
}
const acting = (look) => reach(look).command || asking(look);
// How a command that reads Kafka finds the group's commits; a dead-letter topic is of no group.
const reading = (look) => [reach(look).group, reach(look).servers].filter(Boolean).join(" ");

const ACTING = /`(perkey (?:key|record|pause|resume|set) [^`]+)`/g;
const ASKING = /`(perkey (?:why|status)(?: [^`]+)?)`/g;

// An advice whose commands in backticks are complete.
export function completed(look, text) {
  return (text || "").replace(ACTING, (_, typed) => `\`${typed} ${acting(look)}\``)
    .replace(ASKING, (all, typed) => (typed.includes("TOPIC") ? all : `\`${typed} ${asking(look)}\``));
}

export const whyCommand = (look, at) => `perkey why ${at} ${asking(look)}`;

export function command(text) {
  return h("span", { class: "command" }, h("code", null, text),
    h("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}` }));
}

const listed = (title, rows) => (rows.length
  ? h("details", { class: "commands", "data-key": `commands ${rows[0]}` }, h("summary", null, title), rows.map(command)) : null);

// place -> what a command can do with a record there
const OFFERED = { parked: ["retry", "skip"], on_hold: ["skip"], retrying: ["retry", "skip"] };
const KEPT = ["parked", "on_hold"];

// Of one record, and of its key.
export function recordCommands(look, row) {
  const at = quoted(`${row.topic}:${row.partition}:${row.offset}`), reason = `--reason TEXT ${acting(look)}`;
  const rows = (OFFERED[row.place] || []).map((action) => `perkey record ${action} ${at} ${reason}`);
  if (named(row.key) && (rows.length || row.place === "ready")) {
    const lane = `--topic ${quoted(row.topic)} --key ${quoted(row.key)}`;
    if (row.place !== "on_hold") rows.push(`perkey key hold ${lane} --for 1h ${reason}`);
    rows.push(`perkey key release ${lane} ${reason}`);
  }
  if (KEPT.includes(row.place)) rows.push(`perkey parked export ${at} ${reading(look)} > parked.jsonl`);
  return listed("Commands", rows);
}

// Release all that is parked alike: one command for each topic and type of error among these.
export function releaseAlike(look, rows) {
  const kinds = new Map(rows.map((row) => {
    const type = row.last_error && row.last_error.type;
    return [`${row.topic} ${type}`, { topic: row.topic, type }];
  }));
  const alike = [...kinds.values()].filter(({ type }) => !type || /^[\w.]+$/.test(type));
  return listed("Release all with the same error", alike.map(({ topic, type }) => {
    const where = `state == "parked" and error.type == ${type ? `"${type}"` : "null"}`;
    return `perkey key release --topic ${quoted(topic)} --where '${where}' --reason TEXT ${acting(look)}`;
  }));
}

export const exportCommand = (look) => [h("p", { class: "small quiet" }, "To export with values:"),
  command(`perkey parked export ${reading(look)} > parked.jsonl`)];

// The dead-letter topics of the handlers: the dry run of a replay; --yes sends.
export function replayCommands(look) {
  return (look.letters || []).map((topic) => h("li", null, h("span", null, topic),
    command(`perkey dlq replay ${quoted(topic)} ${reach(look).servers || ""}`.trim())));
}
