// Pause and resume: a dry run first, then a reason, then the answer of each member.

import { h } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const WORDS = { pause: "Pause", resume: "Resume" };
const same = (one, other) => (one ?? null) === (other ?? null);
let order = null;

const about = ({ topic, handler }) => (topic ? `topic ${topic}` : handler ? `handler ${handler}` : "everything");

// Pause, or resume where a command has paused just this; nothing unless the server allows commands.
export function acts(look, target) {
  if (!look.control) return null;
  const paused = look.halts.some((halt) => halt.cause === "command"
    && same(halt.topic, target.topic) && same(halt.handler, target.handler));
  const action = paused ? "resume" : "pause", word = WORDS[action];
  return h("span", { class: "acts" },
    h("button", { type: "button", class: "act", "data-order": JSON.stringify({ action, ...target }) },
      target.topic || target.handler ? word : `${word} everything`));
}

// Longer than the process takes for any answer; a process that is suspended gives none.
const LIMIT_S = 30;

// The answer to a command; an Error with the refusal as its message.
async function post(given) {
  let answer, body;
  try {
    // Without the user and password of an address like http://any:TOKEN@host: fetch refuses those.
    answer = await fetch(new URL("control", location.origin + location.pathname), {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given),
      signal: AbortSignal.timeout(1000 * LIMIT_S),
    });
    body = await answer.json();
  } catch (error) {
    if (error.name === "TimeoutError") throw new Error(`no answer within ${LIMIT_S} s: it may be done all the same`);
    throw new Error(answer ? `HTTP ${answer.status}` : "no answer: the process has ended or is unreachable");
  }
  if (!answer.ok) throw new Error(body.error || `HTTP ${answer.status}`);
  return body;
}

const BAD = ["refused", "no answer"];

// Each member's answer, and the known members without one.
async function answers(given) {
  const list = $("order-answers");
  list.replaceChildren(h("li", { class: "quiet" }, "asking…"));
  try {
    const body = await post(given), answered = body.answers.map((one) => one.member);
    const rows = [...body.answers, ...body.members.filter((one) => !answered.includes(one)).map((member) => (
      { member, outcome: "no answer", detail: "it runs elsewhere: open its own page, or use the command there" }))];
    list.replaceChildren(...rows.map((one) => h("li", null, h("b", null, `${one.member}: `),
      h("span", { class: BAD.includes(one.outcome) ? "bad" : "" }, `${one.outcome}: ${one.detail}`))));
    return rows.every((one) => one.outcome !== "refused") && rows.some((one) => one.outcome !== "no answer");
  } catch (error) {
    list.replaceChildren(h("li", { class: "bad" }, error.message));
    return false;
  }
}

const given = (rest) => ({ ...order, claimed_by: "page", for_s: Number($("order-for").value), ...rest });

export function open(target) {
  order = JSON.parse(target.dataset.order);
  $("order-title").textContent = `${WORDS[order.action]} ${about(order)}`;
  $("order-time").hidden = order.action !== "pause";
  $("order-reason").value = "";
  $("order-go").disabled = false;
  $("order-close").textContent = "Cancel";
  $("order-answers").replaceChildren();
  $("command").showModal();
  $("order-reason").focus();
  answers(given({ reason: "dry run", dry_run: true }));
}

$("order-close").addEventListener("click", () => $("command").close());
$("command").addEventListener("close", () => document.activeElement.blur());
$("order-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("order-go").disabled = true;
  const obeyed = await answers(given({ reason: $("order-reason").value }));
  $("order-go").disabled = obeyed;
  if (obeyed) $("order-close").textContent = "Close";
});
