// What is shown: the group, a partition, a record. Each is made anew from what came, then merged in.

import { chart, clock, count, duration, h, ms, none, rate, span, spark, table } from "./drawing.js";

export const PAGE = 50;
const PLACES = {
  ready: "may start", gathering: "in a batch that fills up", behind: "behind another of its lane",
  past_map: "past the offset map", held: "held by an earlier call", marking: "being marked",
  running: "running", sending: "outputs on the way", committing: "commit on the way",
  pending: "waits for its transaction", retrying: "waits for a retry", parked: "parked",
  unfetched: "not fetched again yet", done: "done", elsewhere: "not with this member",
  not_read: "not fetched yet", not_there: "not in the log yet",
};
const CELLS = {
  d: "done", u: "not fetched again yet", q: "waits", b: "handled, not acknowledged", r: "running",
  f: "waits for a retry", p: "parked",
};
const STATES = { running: "good", waiting: "warn", starting: "warn", paused: "warn", stopping: "warn", leaving: "warn" };
const ORDERS = {
  remaining: "most remaining", oldest: "oldest", done_beyond: "most done beyond", map: "largest map", name: "name",
};

const enc = encodeURIComponent;
export const partitionLink = (row) => `#/partition/${enc(row.topic)}/${row.partition}`;
export const recordLink = (row) => `#/record/${enc(row.topic)}/${row.partition}/${row.offset}`;
const place = (name) => PLACES[name] || name;
const named = (row) => `${row.topic}[${row.partition}]`;
const key = (row) => (row.key === null || row.key === undefined
  ? h("span", { class: "quiet" }, "none") : h("span", { class: "key" }, row.key));
const errorText = (error) => (error.message ? `${error.type}: ${error.message}` : error.type);
const attempts = (row) => (row.attempts_max ? `${row.attempts} of ${row.attempts_max}` : count(row.attempts));
const tone = (row) => (row.place === "parked" ? "bad" : row.place === "retrying" ? "warn" : "");

function said(sentences, stuck) {
  return h("section", { class: `card why${stuck ? " stuck" : ""}`, "aria-label": "Why" },
    sentences.map((one) => h("div", null,
      h("p", { class: "said" }, one.text), one.next && h("p", { class: "next" }, `Next: ${one.next}`))));
}

function tiles(pairs) {
  return h("section", { class: "tiles", "aria-label": "Numbers" }, pairs.map(([name, value, kind, why]) =>
    h("div", { class: "tile", title: why }, h("b", { class: kind }, value), h("span", null, name))));
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
  const sentences = look.sentences.filter((one) => one.about !== "healthy");
  return [
    look.sentences.length ? said(look.sentences, sentences.length > 0) : null,
    tiles([
      ["remaining", about + count(sums.remaining), "", "What is really left: end − frontier − done beyond"],
      ["lag, as other tools count", count(sums.lag), "quiet", "end − frontier: counts what is done beyond it as not done"],
      ["records a second", rate(sums.rate_per_s)],
      ["oldest not done", duration(sums.oldest_age_s)],
      ["running", count(sums.in_flight)],
      ["wait for a retry", count(sums.retrying), sums.retrying ? "warn" : ""],
      ["parked", count(sums.parked), sums.parked ? "bad" : ""],
      ["failed attempts", count(sums.failures)],
    ]),
    h("div", { class: "pair" }, left(history), speed(history)),
    holdUps(look.blockers),
    handlers(look.handlers, history),
    h("div", { class: "pair" }, failures(look.failures), members(look.members)),
    partitions(look.partitions, view),
  ];
}

function left(history) {
  const real = history.map((one) => one.remaining), plain = history.map((one) => one.lag);
  const top = Math.max(0, ...real, ...plain);
  return h("section", { class: "card" },
    h("h2", null, "What is left"),
    chart(`remaining over time, now ${count(real.at(-1))}`, real, plain),
    h("div", { class: "ends" }, span(history).map((end) => h("span", null, end))),
    h("div", { class: "legend" },
      h("span", null, h("i", { class: "stroke" }), "remaining"),
      h("span", null, h("i", { class: "stroke other" }), "lag, as other tools count"),
      h("span", null, `highest ${count(top)}`)));
}

function speed(history) {
  const values = history.map((one) => one.rate_per_s);
  return h("section", { class: "card" },
    h("h2", null, "Records a second"),
    chart(`records a second over time, now ${rate(values.at(-1))}`, values),
    h("div", { class: "ends" }, span(history).map((end) => h("span", null, end))),
    h("div", { class: "legend" }, h("span", null, `highest ${rate(Math.max(0, ...values))}`)));
}

function holdUps(rows) {
  if (!rows.length) return null;
  return card("Records that hold up most", table([
    ["record", (r) => `${named(r)} ${count(r.offset)}`, "name"],
    ["key", key, "name"],
    ["where it is", (r) => h("span", { class: tone(r) }, place(r.place)), "nowrap"],
    ["for", (r) => duration(r.for_s), "n"],
    ["failed", attempts, "n"],
    ["wait behind", (r) => count(r.waiting_behind), "n"],
    ["done beyond", (r) => count(r.done_beyond), "n"],
    ["last error", error, "name wide"],
  ], rows.slice(0, 8), recordLink, recordLink));
}

function handlers(rows, history) {
  return card("Handlers", table([
    ["handler", (r) => r.name, "name"],
    ["a second", (r) => rate(r.rate_per_s), "n"],
    ["p50", (r) => ms(r.latency_ms.p50), "n"],
    ["p99", (r) => ms(r.latency_ms.p99), "n"],
    ["p99 over time", (r) => spark(history.map((one) => one.p99_ms[r.name])), "wide"],
    ["calls", (r) => `${count(r.in_flight)} of ${count(r.concurrency)}`, "n"],
    ["done", (r) => count(r.done), "n"],
    ["failed attempts", (r) => count(r.failures), "n"],
    ["dead letters", (r) => count(r.dead_lettered), "n"],
    ["skipped", (r) => count(r.skipped), "n"],
    ["parked", (r) => h("span", { class: r.parked ? "bad" : "" }, count(r.parked)), "n"],
  ], rows, (r) => r.name));
}

function failures(rows) {
  if (!rows.length) return card("Failures by type", nothing("No attempt has failed."));
  return card("Failures by type", rows.map((row) => {
    const example = row.example, gone = [
      ["parked", row.parked], ["dead-lettered", row.dead_lettered], ["skipped", row.skipped],
    ].filter(([, n]) => n).map(([what, n]) => `${count(n)} ${what}`).join(", ");
    return h("details", { "data-key": `${row.handler} ${row.type}` },
      h("summary", null,
        h("span", { class: "type" }, row.type),
        h("span", { class: "message" }, example.message),
        h("span", { class: "small quiet" }, `${count(row.attempts)} ×`)),
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
      ? h("span", { class: "bad", title: `last heard ${duration(r.silent_s)} ago: killed, or cut off` },
        h("i", { class: "dot bad" }), ` silent for ${duration(r.silent_s)}`)
      : h("span", null, h("i", { class: `dot ${STATES[r.state] || "bad"}` }), ` ${r.state}`)), "nowrap"],
    ["partitions", (r) => (r.silent_s ? none : count(r.partitions)), "n"],
    ["remaining", (r) => (r.silent_s ? none : count(r.remaining)), "n"],
    ["a second", (r) => (r.silent_s ? none : rate(r.rate_per_s)), "n"],
  ], rows, (r) => r.member));
}

function partitions(listed, view) {
  const last = Math.min(listed.start + PAGE, listed.of);
  return h("section", { class: "card", id: "partitions" },
    h("div", { class: "filter" },
      h("h2", null, "Partitions ", h("span", { class: "count" },
        listed.of ? `${count(listed.start + 1)}–${count(last)} of ${count(listed.of)}` : "none")),
      h("input", { id: "text", "aria-label": "Show those whose name or member has this in it", placeholder: "filter", maxlength: "300", autocomplete: "off" }),
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
      ["map", (r) => `${count(r.map_chars)} of ${count(r.map_limit)}`, "n wide"],
      ["member", (r) => h("span", { class: r.silent ? "bad" : "" }, r.member), "name wide"],
    ], listed.rows, partitionLink, partitionLink) : nothing("No partition here."));
}

// -- a partition ------------------------------------------------------------------------------------

export function partition(look, where) {
  const head = h("div", { class: "back" }, h("a", { href: "#/" }, "‹ group"), h("h1", null, named(where)));
  const picture = look.picture;
  if (!picture) return [head, h("section", { class: "card" }, nothing("This partition is not with this member now."))];
  const row = picture.partition, from = picture.reported, blocker = picture.records.find((one) => one.at_frontier);
  return [
    head,
    from ? reported(from) : null,
    said([standing(row, blocker)], row.done_beyond > 0 || row.place),
    tiles([
      ["committed", row.committed < 0 ? none : count(row.committed)],
      ["frontier", count(row.frontier), "", "The lowest offset that is not done"],
      ["done beyond it", count(row.done_beyond)],
      ["remaining", (row.remaining_is_bound ? "≤ " : "") + count(row.remaining)],
      ["end of the log", count(row.end)],
      ["oldest not done", duration(row.oldest_age_s)],
      ["offset map", `${count(row.map_chars)} of ${count(row.map_limit)}`, "", "Characters of what the broker stores"],
      ["handler", row.handler],
    ]),
    from && !picture.cells ? null : map(picture, row),
    card("Records that hold it up", picture.records.length ? table([
      ["offset", (r) => count(r.offset), "nowrap"],
      ["key", key, "name"],
      ["where it is", (r) => h("span", { class: tone(r) }, place(r.place)), "nowrap"],
      ["for", (r) => duration(r.for_s), "n"],
      ["failed", attempts, "n"],
      ["wait behind", (r) => count(r.waiting_behind), "n"],
      ["last error", error, "name"],
    ], picture.records, recordLink, recordLink) : nothing("None: all that was read is done.")),
    card("Where its records are", h("dl", { class: "facts" },
      Object.entries(row.places).filter(([, n]) => n).map(([name, n]) =>
        [h("dt", null, place(name)), h("dd", null, count(n))]),
      h("dt", null, "held, not done"), h("dd", null, count(row.buffered)))),
  ];
}

function reported(from) {
  const silent = from.silent_s
    ? h("span", { class: "bad" }, `, silent for ${duration(from.silent_s)}: killed, or cut off`) : null;
  return h("p", { class: "small quiet" },
    `As member ${from.member} reported at ${clock(from.at)}`, silent, ".");
}

function standing(row, blocker) {
  if (row.place) return { text: `${row.place === "start_unknown" ? "Assigned, its start is not known" :
    "Not fetched, although its log grows,"} since ${duration(row.place_for_s)}: ${row.place_reason}.` };
  const since = row.committed < 0 ? "Nothing is committed yet." :
    `Committed to ${count(row.committed)} since ${clock(row.committed_since)} (${duration(row.committed_for_s)}).`;
  if (!row.remaining) return { text: `${since} Nothing is left to do.` };
  if (!blocker) return { text: `${since} ${count(row.remaining)} records are left; none holds it up.` };
  const who = `Record ${count(blocker.offset)}${blocker.key === null ? "" : ` (key ${blocker.key})`}`;
  const after = blocker.last_error ? `, after ${errorText(blocker.last_error)}` : "";
  const long = blocker.for_s === null ? "" : ` for ${duration(blocker.for_s)}`;
  return {
    text: `${since} ${who} holds it up: ${place(blocker.place)}${long}${after}. ` +
      `${count(blocker.done_beyond)} records beyond it are done, ${count(blocker.waiting_behind)} wait behind it.`,
  };
}

function map(picture, row) {
  const { from, to, cells, per_cell: each } = picture;
  const ahead = Math.max(0, row.end - to), tallies = {};
  for (const letter of cells) tallies[letter] = (tallies[letter] || 0) + 1;
  const summary = Object.entries(tallies).map(([letter, n]) => `${n} ${CELLS[letter]}`).join(", ");
  const offsets = (at) => {
    const first = from + at * each, last = Math.min(to, first + each) - 1;
    return first === last ? count(first) : `${count(first)} to ${count(last)}`;
  };
  return h("section", { class: "card" },
    h("h2", null, cells.length ? `Offsets ${count(from)} to ${count(to - 1)}` : "Offsets",
      h("span", { class: "count" }, each > 1 ? `; a square is ${count(each)} offsets and shows the worst of them` : "")),
    cells.length ? h("div", { class: "cells", role: "img", "aria-label": `Cells: ${summary}` },
      [...cells].map((letter, at) => h("i", { class: `c-${letter}`, title: `${offsets(at)}: ${CELLS[letter]}` })))
      : nothing("All that was read is done."),
    ahead ? h("p", { class: "small quiet" }, picture.reported ? `then ${count(ahead)} more in the log, none of them done`
      : `then ${count(ahead)} more in the log, not fetched yet`) : null,
    h("div", { class: "legend" }, Object.entries(CELLS).filter(([letter]) => tallies[letter])
      .map(([letter, text]) => h("span", null, h("i", { class: `c-${letter}` }), text))));
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
    found.length ? found.map(record) :
      h("section", { class: "card" }, nothing("No record under this key is held now: all that was read is done.")),
  ];
}

function record(row) {
  const facts = [
    ["where", h("a", { href: partitionLink(row) }, named(row)), true],
    ["offset", h("a", { href: recordLink(row) }, count(row.offset)), true],
    ["is", h("span", { class: tone(row) }, place(row.place)), true],
    ["behind", row.behind && h("a", { href: recordLink({ ...row, ...row.behind }) },
      `record ${count(row.behind.offset)}, ${place(row.behind.place)}`), row.behind],
    ["key", key(row), "key" in row],
    ["handler", row.handler, row.handler],
    ["for", duration(row.for_s), row.for_s],
    ["failed attempts", attempts(row), "attempts" in row],
    ["next attempt in", duration(row.due_in_s), row.due_in_s],
    ["wait behind it", count(row.waiting_behind), "waiting_behind" in row],
    ["fetched up to", count(row.position), "position" in row],
    ["end of the log", count(row.end), "end" in row],
  ].filter(([, , there]) => there);
  const story = row.story || [];
  return h("div", { class: "pair", "data-key": recordLink(row) },
    card("Record", h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
      row.last_error && h("pre", { tabindex: "0" }, errorText(row.last_error))),
    card("Its story", story.length ? h("ol", { class: "story" }, story.map((one) =>
      h("li", null, h("span", { class: "quiet" }, clock(one.at)), h("span", null, one.what))))
      : nothing("Nothing has gone wrong with it.")));
}
