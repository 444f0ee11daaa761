// What is shown: the group, a partition, a record. Each is made anew from what came, then merged in.

import { command, completed, exportCommand, recordCommands, releaseAlike, replayCommands, whyCommand } from "./commands.js";
import { acts } from "./control.js";
import { chart, clock, count, duration, h, ms, none, rate, spark, table } from "./drawing.js";

export const PAGE = 50;
const PLACES = {
  ready: "may start", gathering: "in a batch that fills up", behind: "behind another of its lane",
  not_begun: "granted, not begun",
  past_map: "past the offset map", fetching: "read again", held: "held by an earlier call", marking: "being marked",
  running: "running", sending: "outputs on the way", committing: "commit on the way",
  pending: "waits for its transaction", retrying: "waits for a retry", parked: "parked",
  on_hold: "held by a command", outage: "what it calls is away", budget: "in the queue of a budget",
  unfetched: "not fetched again yet", done: "done", elsewhere: "not with this member",
  not_read: "not fetched yet", not_there: "not in the log yet",
};
const CELLS = {
  d: "done", u: "not fetched again yet", q: "waits", b: "handled, not acknowledged", r: "running",
  f: "waits for a retry", p: "parked",
};
const STATES = { running: "good", waiting: "warn", starting: "warn", paused: "warn", stopping: "warn", leaving: "warn" };
const ORDERS = {
  remaining: "most remaining", worst: "worst first", oldest: "oldest", done_beyond: "most done beyond", map: "largest map", name: "name",
};

const NOW_S = 60; // what failed so lately is marked as going on
const enc = encodeURIComponent;
export const partitionLink = (row) => `#/partition/${enc(row.topic)}/${row.partition}`;
export const recordLink = (row) => `#/record/${enc(row.topic)}/${row.partition}/${row.offset}`;
const place = (name) => PLACES[name] || name;
const named = (row) => `${row.topic}[${row.partition}]`;
const key = (row) => (row.key === null || row.key === undefined
  ? h("span", { class: "quiet" }, "none") : h("span", { class: "key" }, row.key));
const errorText = (error) => (error.message ? `${error.type}: ${error.message}` : error.type);
const attempts = (row) => (row.attempts_max ? `${row.attempts} of ${row.attempts_max}` : count(row.attempts));
const tone = (row) => (row.place === "parked" ? "bad" : ["retrying", "on_hold"].includes(row.place) ? "warn" : "");

// How bad it is, by the rank of a sentence: a word and a colour.
const RANKS = [
  ["Broker", "bad"], ["Member", "bad"], ["Hangs", "bad"], ["Map full", "bad"], ["Stuck", "warn"],
  ["Asked for", "mild"], ["Buffers full", "mild"], ["Busy", "mild"], ["Healthy", "good"],
];
function severity({ rank = 8, about }) {
  if (about === "parked") return ["Parked", "bad"];
  if (about === "retrying") return ["Retrying", "warn"];
  return RANKS[Math.min(rank, 8)];
}

// Where a sentence speaks of one record: `topic[3] … record 50`, and its key.
const SPOKEN = /([^\s[]+)\[(\d+)\](?:[^]*?[Rr]ecord ([\d,]+))?/;
function spoken({ text }) {
  const found = SPOKEN.exec(text);
  if (!found) return null;
  const [, topic, number, offset] = found;
  return { topic, partition: Number(number), offset: offset && Number(offset.replaceAll(",", "")) };
}

// The partition, the record and the key in bold.
function bold(text) {
  return text.split(/([^\s[]+\[\d+\]|[Rr]ecord [\d,]+|\(key [^)]{1,64}\))/)
    .map((part, at) => (at % 2 ? h("b", null, part) : part));
}

// What stands in backticks as code.
function ticked(text) {
  return text.split("`").map((part, at) => (at % 2 ? h("code", null, part) : part));
}

// What to type: a command of the advice, else the one that explains this record.
function cure(look, one) {
  if (one.command) return one.command;
  const given = /`([^`\s]+ [^`]+)`/.exec(one.next || ""), where = spoken(one);
  if (given && !given[1].includes("TOPIC")) return given[1];
  if (!where || one.about === "healthy") return null;
  const at = where.offset === undefined ? "" : `:${where.offset}`;
  return whyCommand(look, `${where.topic}:${where.partition}${at}`);
}

function said(look, sentences) {
  const [first, ...others] = sentences.map((one) => ({ ...one, next: completed(look, one.next) }));
  const [word, kind] = severity(first), typed = cure(look, first);
  return h("section", { class: `card why ${kind}`, "aria-label": "Why" },
    h("div", { class: "head" }, h("span", { class: `badge ${kind}` }, word),
      h("p", { class: "said" }, bold(first.text))),
    first.next && h("p", { class: "next" }, h("b", null, "Next: "), ticked(first.next)),
    typed && command(typed),
    first.stack && first.stack.length ? h("details", { "data-key": "stack", open: true },
      h("summary", null, "Where its call is, the innermost line last"), h("pre", { tabindex: "0" }, first.stack.join("\n"))) : null,
    others.length ? h("ul", { class: "others" }, others.map((one) => {
      const [name, tone] = severity(one);
      return h("li", null, h("span", { class: `badge ${tone}` }, name), h("div", null,
        h("p", { class: "text" }, bold(one.text)),
        one.next && h("p", { class: "next" }, ticked(one.next))));
    })) : null);
}

// [what they are of, tiles]: what is so now apart from what was counted since the start.
function tiles(...strips) {
  return h("section", { class: "numbers", "aria-label": "Numbers" }, strips.map(([title, pairs]) =>
    h("div", { class: "strip" }, title && h("h3", null, title),
      h("div", { class: "tiles" }, pairs.map(([name, value, kind, why]) =>
        h("div", { class: "tile", title: why }, h("b", { class: kind }, value), h("span", null, name)))))));
}

function card(title, ...content) {
  return h("section", { class: "card" }, h("h2", null, title), content);
}

// An error in a line of a table; the record's own page has all that is kept of it.
function error(row) {
  if (!row.last_error) return none;
  const text = errorText(row.last_error);
  return text.length > 120 ? `${text.slice(0, 119)}…` : text;
}

const nothing = (text) => h("p", { class: "quiet" }, text);

// -- the group --------------------------------------------------------------------------------------

export function group(look, history, view) {
  const sums = look.totals, about = sums.remaining_is_bound ? "≤ " : "";
  const away = look.sentences.some((one) => one.about === "broker" || one.about === "refused");
  const letters = look.handlers.reduce((sum, one) => sum + one.dead_lettered, 0);
  return [
    tabs(look, "group"),
    look.sentences.length ? said(look, look.sentences) : null,
    tiles(["now", [
      ["remaining", away ? none : about + count(sums.remaining), "", "end − frontier − done beyond; unknown while no broker answers"],
      ["plain lag", away ? none : count(sums.lag), "quiet", "As other tools count: end − frontier, what is done beyond it too"],
      ["records/s", rate(sums.rate_per_s)],
      ["oldest", duration(sums.oldest_age_s), "", "Age of the oldest record that is not done"],
      ["running", count(sums.in_flight)],
      ["retrying", count(sums.retrying), sums.retrying ? "warn" : "", "They wait for their next attempt"],
      ["parked", count(sums.parked), sums.parked ? "bad" : ""],
    ]], ["since the start", [
      ["done", count(sums.done)],
      ["failed attempts", count(sums.failures)],
      ["dead letters", count(letters)],
    ]]),
    h("div", { class: "pair" }, left(history), speed(history)),
    holdUps(look.blockers),
    handlers(look, history),
    deadLetters(look),
    h("div", { class: "pair" }, failures(look.failures), members(look.members)),
    partitions(look.partitions, view),
  ];
}

function left(history) {
  const real = history.map((one) => one.remaining), plain = history.map((one) => one.lag);
  return h("section", { class: "card" },
    h("h2", null, "Remaining", h("span", { class: "legend" },
      h("span", null, h("i", { class: "stroke" }), "remaining"),
      h("span", null, h("i", { class: "stroke other" }), "plain lag, as other tools count"))),
    chart("left", `remaining over time, now ${count(real.at(-1))}`, history.map((one) => one.at),
      [{ name: "remaining", values: real }, { name: "plain lag", values: plain }], count));
}

function speed(history) {
  const values = history.map((one) => one.rate_per_s);
  return h("section", { class: "card" },
    h("h2", null, "Records per second"),
    chart("speed", `records per second over time, now ${rate(values.at(-1))}`,
      history.map((one) => one.at), [{ name: "records/s", values }], rate));
}

// Records that wait alike, for the same error, are one row: the worst, and links to the others.
function alike(rows) {
  const found = new Map();
  for (const row of rows) {
    const type = row.last_error ? row.last_error.type : "";
    const kind = type || row.place !== "running" ? `${row.topic} ${row.handler} ${row.place} ${type}` : recordLink(row);
    if (found.has(kind)) found.get(kind).others.push(row);
    else found.set(kind, { ...row, others: [] });
  }
  return [...found.values()];
}

const OTHERS_MAX = 12;
function others(row) {
  if (!row.others.length) return null;
  const rest = row.others.length - OTHERS_MAX;
  return [`and ${count(row.others.length)} more alike: `, row.others.slice(0, OTHERS_MAX).map((one, at) =>
    [at ? ", " : "", h("a", { href: recordLink(one) }, `[${one.partition}] ${count(one.offset)}`)]),
  rest > 0 ? ` and ${count(rest)} more` : ""];
}

function holdUps(all) {
  const rows = all.filter((r) => r.waiting_behind || r.done_beyond || tone(r));
  if (!rows.length) return null;
  return card("Records that block most", table([
    ["record", (r) => `${named(r)} ${count(r.offset)}`, "name"],
    ["key", key, "name"],
    ["where it is", (r) => h("span", { class: tone(r) }, place(r.place)), "nowrap"],
    ["for", (r) => duration(r.for_s), "n"],
    ["failed", attempts, "n"],
    ["wait behind", (r) => count(r.waiting_behind), "n"],
    ["done beyond", (r) => count(r.done_beyond), "n"],
    ["last error", error, "name wide"],
  ], alike(rows).slice(0, 8), recordLink, recordLink, others));
}

function handlers(look, history) {
  const ever = "since the start";
  return card("Handlers", table([
    ["handler", (r) => r.name, "name"],
    ["per second", (r) => rate(r.rate_per_s), "n", "now"],
    ["p50", (r) => ms(r.latency_ms.p50), "n", "now"],
    ["p99", (r) => ms(r.latency_ms.p99), "n", "now"],
    ["calls", (r) => `${count(Math.min(r.in_flight, r.concurrency))} of ${count(r.concurrency)}`, "n", "now"],
    ["p99 over time", (r) => spark(history.map((one) => one.p99_ms[r.name])), "wide n", "now"],
    ["done", (r) => count(r.done), "n", ever],
    ["failed attempts", (r) => count(r.failures), "n", ever],
    ["dead letters", (r) => count(r.dead_lettered), "n", ever],
    ["skipped", (r) => count(r.skipped), "n", ever],
    ["parked", (r) => h("span", { class: r.parked ? "bad" : "" }, count(r.parked)), "n", ever],
    ...(look.control ? [["", (r) => acts(look, { handler: r.name }), "nowrap"]] : []),
  ], look.handlers, (r) => r.name), acts(look, {}));
}

function failures(rows) {
  if (!rows.length) return card("Failures since the start", nothing("No attempt has failed."));
  const now = Date.now() / 1000;
  return card("Failures since the start", rows.map((row) => {
    const example = row.example, gone = [
      ["parked", row.parked], ["dead-lettered", row.dead_lettered], ["skipped", row.skipped],
    ].filter(([, n]) => n).map(([what, n]) => `${count(n)} ${what}`).join(", ");
    return h("details", { "data-key": `${row.handler} ${row.type}` },
      h("summary", null,
        h("span", { class: "type" }, row.type),
        h("span", { class: "message" }, example.message),
        h("span", { class: "small quiet" }, `${count(row.attempts)} ×, last `,
          h("span", { class: now - row.last_at < NOW_S ? "bad" : "" }, `${duration(Math.max(0, now - row.last_at))} ago`))),
      h("p", { class: "small quiet" },
        `${row.handler}; first ${clock(row.first_at)}, last ${clock(row.last_at)}${gone ? `; ${gone}` : ""}. Last one: `,
        h("a", { href: recordLink(example) }, `${named(example)} ${count(example.offset)}`),
        `, attempt ${example.attempt}, key `, key(example)),
      h("pre", { tabindex: "0" }, example.traceback || example.message));
  }));
}

function members(rows) {
  return card("Members", table([
    ["member", (r) => h("span", { class: r.silent_s ? "quiet" : "" }, r.member), "name"],
    ["state", (r) => (r.silent_s
      ? h("span", { class: "bad", title: `last report ${duration(r.silent_s)} ago: killed, or cut off` },
        h("i", { class: "dot bad" }), ` silent for ${duration(r.silent_s)}`)
      : h("span", null, h("i", { class: `dot ${STATES[r.state] || "bad"}` }), ` ${r.state}`)), "nowrap"],
    ["partitions", (r) => (r.silent_s ? none : count(r.partitions)), "n"],
    ["remaining", (r) => (r.silent_s ? none : count(r.remaining)), "n"],
    ["per second", (r) => (r.silent_s ? none : rate(r.rate_per_s)), "n"],
  ], rows, (r) => r.member));
}

function partitions(listed, view) {
  const last = Math.min(listed.start + PAGE, listed.of);
  return h("section", { class: "card", id: "partitions" },
    h("div", { class: "filter" },
      h("h2", null, "Partitions ", h("span", { class: "count" },
        listed.of ? `${count(listed.start + 1)}–${count(last)} of ${count(listed.of)}` : "none")),
      h("input", { id: "text", "aria-label": "Show partitions whose name or member contains this", placeholder: "filter", maxlength: "300", autocomplete: "off" }),
      h("select", { id: "order", "aria-label": "Order" }, Object.entries(ORDERS).map(([name, text]) =>
        h("option", { value: name, selected: name === view.order }, text))),
      h("button", { id: "previous", type: "button", disabled: listed.start === 0 }, "Previous"),
      h("button", { id: "next", type: "button", disabled: last >= listed.of }, "Next")),
    listed.rows.length ? table([
      ["partition", named, "name"],
      ["remaining", (r) => count(r.remaining), "n"],
      ["lag", (r) => count(r.lag), "n quiet wide"],
      ["done beyond", (r) => count(r.done_beyond), "n"],
      ["committed", (r) => (r.committed < 0 ? none : count(r.committed)), "n wide"],
      ["for", (r) => duration(r.committed_for_s), "n wide"],
      ["oldest", (r) => duration(r.oldest_age_s), "n"],
      ["running", (r) => (r.silent ? none : count(r.in_flight)), "n wide"],
      ["retrying", (r) => (r.silent ? none : count(r.retrying)), "n wide"],
      ["parked", (r) => (r.silent ? none : h("span", { class: r.parked ? "bad" : "" }, count(r.parked))), "n"],
      ["map", (r) => h("span", { class: r.past_map ? "bad" : "", title: mapTitle(r) }, percent(r)), "n wide"],
      ["member", (r) => h("span", { class: r.silent ? "bad" : "" }, r.member), "name wide"],
    ], listed.rows, partitionLink, partitionLink) : nothing("No partition here."));
}

// -- parked and held records ------------------------------------------------------------------------

export const LISTS = {
  parked: { list: "parked", title: "Parked", empty: "No record is parked." },
  held: { list: "on_hold", title: "Held", empty: "No record is held. What is held of a key is here once a record of it waits." },
};
const GIVEN_UP = {
  attempts: "attempts used up", rejected: "rejected", undecodable: "cannot be decoded", command: "command",
  hold: "hold= lasted too long", policy: "policy", other: "dead letter refused",
};

function tabs(look, kind) {
  const all = [["group", "Group", ""], ...Object.entries(LISTS).map(([name, { list, title }]) => [name, title, look.totals[list]])];
  return h("nav", { class: "tabs", "aria-label": "Views" }, all.map(([name, title, number]) =>
    h("a", { href: name === "group" ? "#/" : `#/${name}`, "aria-current": name === kind && "page" }, title,
      number === "" ? null : h("span", { class: !number ? "quiet" : name === "parked" ? "bad" : "warn" }, ` ${count(number)}`))));
}

// The dead-letter topics of the handlers.
function deadLetters(look) {
  const rows = replayCommands(look);
  return rows.length ? card("Dead letters", h("p", { class: "small quiet" }, "A dry run of their replay; --yes sends them:"),
    h("ul", { class: "letters" }, rows)) : null;
}

// How long until then; the time itself under the pointer.
const until = (look, row) => (row.until
  ? h("span", { title: clock(row.until) }, `in ${duration(Math.max(0, row.until - look.now))}`) : none);
const cause = (row) => (row.last_error ? row.last_error.type : row.error_hash ? `error ${row.error_hash}` : none);

export function waiting(look, kind) {
  const { list, title, empty } = LISTS[kind], rows = look[list] || [], more = look[`${list}_left_out`];
  const letters = kind === "parked" ? deadLetters(look) : null;
  if (!rows.length) return [tabs(look, kind), card(title, nothing(more ? "They are listed in a moment." : empty)), letters];
  const own = kind === "parked" ? [
    ["error", cause, "name"],
    ["failed", attempts, "n"],
    ["given up by", (r) => GIVEN_UP[r.by] || r.by || none, "nowrap"],
    ["for", (r) => duration(r.for_s), "n"],
    ["until", (r) => until(look, r), "n"],
  ] : [
    ["until", (r) => until(look, r), "n"],
    ["by", (r) => r.by || none, "name"],
    ["for", (r) => duration(r.for_s), "n"],
    ["failed", attempts, "n"],
    ["error", cause, "name"],
  ];
  const number = more ? `the ${count(rows.length)} that are so for longest, of ${count(rows.length + more)}` : count(rows.length);
  return [tabs(look, kind), card([`${title} `, h("span", { class: "count" }, number)],
    kind === "parked" ? releaseAlike(look, rows) : null,
    table([
      ["record", (r) => `${named(r)} ${count(r.offset)}`, "name"],
      ["key", key, "name"],
      ...own,
      ["wait behind", (r) => count(r.waiting_behind), "n"],
      ...(look.members.length > 1 ? [["member", (r) => r.member, "name"]] : []),
    ], rows, recordLink, recordLink, (r) => [
      h("p", null, kind === "parked" ? (r.last_error || {}).message : r.reason || "The reason is not known: it was held before this member had its partition."),
      recordCommands(look, r)]),
    exportCommand(look)), letters];
}

// -- a partition ------------------------------------------------------------------------------------

export function partition(look, where) {
  const head = h("div", { class: "back" }, h("a", { href: "#/" }, "‹ group"), h("h1", null, named(where)),
    acts(look, { topic: where.topic }));
  const picture = look.picture;
  if (!picture) return [head, h("section", { class: "card" }, nothing("This partition is not with this member now."))];
  const row = picture.partition, from = picture.reported, blocker = picture.records.find((one) => one.at_frontier);
  return [
    head,
    from ? reported(from) : null,
    said(look, [standing(look, row, blocker)]),
    tiles(["", [
      ["committed", row.committed === null || row.committed < 0 ? none : count(row.committed)],
      ["frontier", count(row.frontier), "", "The lowest offset that is not done"],
      ["done beyond it", count(row.done_beyond)],
      ["remaining", (row.remaining_is_bound ? "≤ " : "") + count(row.remaining)],
      ["end of the log", count(row.end)],
      ["oldest", duration(row.oldest_age_s), "", "Age of the oldest record that is not done"],
      ["map full", percent(row), row.past_map ? "bad" : "", mapTitle(row)],
      ["wait for map", count(row.past_map), row.past_map ? "bad" : "", "Keys whose next record is past the map's reach"],
      ["handler", row.handler],
    ]]),
    from && !picture.cells ? null : map(picture, row),
    card("Records that block the commit", picture.records.length ? table([
      ["offset", (r) => count(r.offset), "nowrap"],
      ["key", key, "name"],
      ["where it is", (r) => h("span", { class: tone(r) }, place(r.place)), "nowrap"],
      ["for", (r) => duration(r.for_s), "n"],
      ["failed", attempts, "n"],
      ["wait behind", (r) => count(r.waiting_behind), "n"],
      ["last error", error, "name"],
    ], alike(picture.records), recordLink, recordLink, others) : nothing("None: all that was read is done.")),
    card("Where its records are", h("dl", { class: "facts row" },
      Object.entries(row.places).filter(([, n]) => n).map(([name, n]) =>
        [h("dt", null, place(name)), h("dd", null, count(n))]),
      h("dt", null, "in memory"), h("dd", null, count(row.buffered)))),
  ];
}

function reported(from) {
  const silent = from.silent_s
    ? h("span", { class: "bad" }, `, silent for ${duration(from.silent_s)}: killed, or cut off`) : null;
  return h("p", { class: "small quiet" },
    `As member ${from.member} reported at ${clock(from.at)}`, silent, ".");
}

const mapTitle = (row) => `${count(row.map_chars)} of ${count(row.map_limit)} characters; at 100 % nothing further out starts`;
const percent = (row) => `${Math.round(100 * (row.map_used ?? 0))} %`;

function standing(look, row, blocker) {
  if (row.place) return { text: `${row.place === "start_unknown" ? "Assigned, start offset unknown" :
    "Not fetched"} since ${duration(row.place_for_s)}: ${row.place_reason}.`,
  rank: 4, command: whyCommand(look, `${row.topic}:${row.partition}`) };
  const since = row.committed < 0 ? "Nothing is committed yet." :
    `Committed to ${count(row.committed)} since ${clock(row.committed_since)} (${duration(row.committed_for_s)}).`;
  if (!row.remaining) return { text: `${since} No records remain.`, rank: 8, about: "healthy" };
  if (!blocker) return { text: `${since} ${count(row.remaining)} records remain; none blocks the commit.`, rank: 8, about: "healthy" };
  const who = `Record ${count(blocker.offset)}${blocker.key === null ? "" : ` (key ${blocker.key})`}`;
  const after = blocker.last_error ? `, after ${errorText(blocker.last_error)}` : "";
  const long = blocker.for_s === null ? "" : ` for ${duration(blocker.for_s)}`;
  const at = `${row.topic}:${row.partition}:${blocker.offset}`;
  const advice = look.sentences.find((one) => {
    const of = spoken(one) || {};
    return of.topic === row.topic && of.partition === row.partition && of.offset === blocker.offset;
  });
  return {
    rank: row.past_map ? 3 : blocker.for_s > 10 ? 2 : 4, about: blocker.place, stack: blocker.stack,
    next: advice && advice.next, command: whyCommand(look, at),
    text: `${since} ${who} blocks it: ${place(blocker.place)}${long}${after}. ` +
      `${count(blocker.done_beyond)} records beyond it are done, ${count(blocker.waiting_behind)} wait behind it.`,
  };
}

function map(picture, row) {
  const { from, to, cells, per_cell: each, shares, edge } = picture;
  const ahead = Math.max(0, row.end - to), tallies = {};
  for (const letter of cells) tallies[letter] = (tallies[letter] || 0) + 1;
  const summary = Object.entries(tallies).map(([letter, n]) => `${n} ${CELLS[letter]}`).join(", ");
  const offsets = (at) => {
    const first = from + at * each, last = Math.min(to, first + each) - 1;
    return first === last ? count(first) : `${count(first)} to ${count(last)}`;
  };
  // Of many offsets in one square: how many are not done, in tenths.
  const share = (at) => (shares && shares[at] !== undefined ? Number(shares[at]) : 9);
  const part = (at) => (each > 1 && cells[at] !== "d" && shares ? `, ${10 * share(at) + 10} % at most not done` : "");
  const reach = edge === undefined || edge === null || edge >= to ? -1 : Math.floor((edge - from) / each);
  return h("section", { class: "card" },
    h("h2", null, cells.length ? `Offsets ${count(from)} to ${count(to - 1)}` : "Offsets",
      h("span", { class: "count" }, each > 1 ? `; a square is ${count(each)} offsets: the colour of the worst, the darker the more are not done` : "")),
    cells.length ? h("div", { class: "cells", role: "img", "aria-label": `Cells: ${summary}` },
      [...cells].map((letter, at) => h("i", {
        class: `c-${letter}${each > 1 && letter !== "d" ? ` s${share(at)}` : ""}${at === reach ? " edge" : ""}`,
        title: `${offsets(at)}: ${CELLS[letter]}${part(at)}${at === reach ? "; the map's reach: nothing further out starts" : ""}`,
      }))) : nothing("All that was read is done."),
    ahead ? h("p", { class: "small quiet" }, picture.reported ? `then ${count(ahead)} more in the log, none of them done`
      : `then ${count(ahead)} more in the log, not fetched yet`) : null,
    h("div", { class: "legend" }, Object.entries(CELLS).filter(([letter]) => tallies[letter])
      .map(([letter, text]) => h("span", null, h("i", { class: `c-${letter}` }), text)),
    reach >= 0 ? h("span", null, h("i", { class: "edge" }), `the map's reach: past ${count(edge)} nothing starts`)
      : edge > 0 && row.remaining ? h("span", null, `the map reaches to ${count(edge)}`) : null));
}

// -- records ----------------------------------------------------------------------------------------

export function records(look, where) {
  const title = where.key !== undefined ? ["Key ", h("span", { class: "key" }, where.key)] :
    `${named(where)} ${count(where.offset)}`;
  const back = where.key !== undefined ? h("a", { href: "#/" }, "‹ group") :
    h("a", { href: partitionLink(where) }, `‹ ${named(where)}`);
  const found = look.found || [];
  return [
    h("div", { class: "back" }, back, h("h1", null, title)),
    found.length ? found.map((row) => record(look, row)) :
      h("section", { class: "card" }, nothing("No record under this key is held now: all that was read is done.")),
  ];
}

function record(look, row) {
  const facts = [
    ["where", h("a", { href: partitionLink(row) }, named(row)), true],
    ["offset", h("a", { href: recordLink(row) }, count(row.offset)), true],
    ["is", h("span", { class: tone(row) }, place(row.place)), true],
    ["behind", row.behind && h("a", { href: recordLink({ ...row, ...row.behind }) },
      `record ${count(row.behind.offset)}, ${place(row.behind.place)}`), row.behind],
    ["key", key(row), "key" in row],
    ["handler", `${row.handler}${row.executor ? ` (${row.executor})` : ""}`, row.handler],
    ["for", duration(row.for_s), row.for_s],
    ["failed attempts", attempts(row), "attempts" in row],
    [row.place === "on_hold" ? "held for another" : "next attempt in", duration(row.due_in_s), row.due_in_s],
    ["held by", row.by || none, row.place === "on_hold"],
    ["reason", row.reason, row.reason],
    ["wait behind it", count(row.waiting_behind), "waiting_behind" in row],
    ["fetched up to", count(row.position), "position" in row],
    ["end of the log", count(row.end), "end" in row],
  ].filter(([, , there]) => there);
  const story = row.story || [];
  return h("div", { class: "pair", "data-key": recordLink(row) },
    card("Record", h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
      recordCommands(look, row),
      row.last_error && h("pre", { tabindex: "0" }, errorText(row.last_error)),
      row.stack && row.stack.length ? [h("p", { class: "small quiet" }, "Where its call is, the innermost line last"),
        h("pre", { tabindex: "0" }, row.stack.join("\n"))] : null),
    card("Its story", story.length ? h("ol", { class: "story" }, story.map((one) =>
      h("li", null, h("span", { class: "quiet" }, clock(one.at)), h("span", null, one.what))))
      : nothing("Nothing has gone wrong with it.")));
}
