// Replay of dead letters: a dry run, then a reason, then its progress. It continues without this page.

import { post } from "./control.js";
import { h } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const LOOK_MS = 500;
const WORDS = { done: "done", stopped: "stopped", failed: "refused" };
let topic = "", job = null, member = "", turn = 0, again = false;

const asked = () => ({ topic, where: $("replay-where").value.trim(), stale: $("replay-stale").value, claimed_by: "page" });

// Ask, and look again until it has ended; a later question ends this one.
async function follow(given) {
  const mine = ++turn;
  const ask = async (what) => {
    const told = await post("replay", what);
    if (mine === turn) ({ job, member } = told);
  };
  job = null;
  draw();
  try {
    await ask(given);
    while (mine === turn && job.state === "running") {
      draw();
      await new Promise((wake) => { setTimeout(wake, LOOK_MS); });
      if (mine === turn) await ask({ action: "state", job: job.job });
    }
    if (mine === turn) draw();
  } catch (error) {
    if (mine === turn) draw(error.message);
  }
}

const look = () => follow({ action: "look", ...asked() });

function line(text, bad) {
  return h("li", null, member ? h("b", null, `${member}: `) : null, h("span", { class: bad ? "bad place" : "" }, text));
}

function lines(error) {
  if (error) return [line(error, true)];
  if (!job || job.state === "running") return [];
  const [first, ...rest] = job.lines;
  const word = job.goes ? WORDS[job.state] : "would";
  return [job.error && line(job.error, true), first && line(`${word}: ${first}`), ...rest.map((one) => h("li", null, one))]
    .filter(Boolean);
}

function draw(error) {
  const runs = !error && (!job || job.state === "running"), goes = Boolean(job && job.goes);
  const ready = Boolean(!error && !runs && !goes && job.state === "done");
  $("replay-title").textContent = `Replay ${(job || { topic }).topic}`;
  $("replay-step").hidden = $("replay-progress").hidden = !runs;
  $("replay-step").textContent = !job ? "asking…" : `${job.goes ? `Replay (${job.reason})` : "Dry run"}: ${job.step}`
    + (job.total ? `, ${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")}` : "");
  if (job && job.total) $("replay-progress").value = job.done / job.total;
  else $("replay-progress").removeAttribute("value");
  $("replay-answers").replaceChildren(...lines(error));
  $("replay-old").hidden = !(ready && job.stale) && !$("replay-stale").value;
  $("replay-stale").required = Boolean(ready && job.stale);
  $("replay-others").hidden = !(ready && job.other_groups.length);
  $("replay-groups").required = Boolean(ready && job.other_groups.length);
  $("replay-names").textContent = ready ? `${job.other_groups.join(", ")} would get them, too: that is meant` : "";
  again = Boolean(error || (!runs && job.state !== "done"));
  $("replay-go").textContent = again ? "Look again" : "Replay";
  $("replay-go").formNoValidate = again;
  $("replay-go").disabled = !again && !(ready && job.going);
  $("replay-stop").hidden = !(runs && goes);
  $("replay-close").textContent = goes ? "Close" : "Cancel";
  for (const name of ["where", "stale", "reason"]) $(`replay-${name}`).disabled = goes && (runs || job.state === "done");
}

export function openReplay(of) {
  topic = of;
  for (const name of ["where", "stale", "reason"]) $(`replay-${name}`).value = "";
  $("replay-groups").checked = false;
  member = "";
  $("replay").showModal();
  look();
}

for (const name of ["where", "stale"]) $(`replay-${name}`).addEventListener("change", look);
$("replay-stop").addEventListener("click", () => post("replay", { action: "stop", job: job.job }).catch(() => {}));
$("replay-close").addEventListener("click", () => $("replay").close());
$("replay").addEventListener("close", () => {
  // What is being sent continues; a dry run that no one waits for ends.
  if (job && !job.goes && job.state === "running") post("replay", { action: "stop", job: job.job }).catch(() => {});
  turn += 1;
  document.activeElement.blur();
});
$("replay-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (again || $("replay-where").value.trim() !== job.where.trim()) look();
  else follow({ action: "go", ...asked(), reason: $("replay-reason").value, groups: job.other_groups });
});
