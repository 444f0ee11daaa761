// Elements, numbers and charts. Text becomes text nodes only: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line"]);

// An element: h("td", {class: "n"}, "12", child, …); null and false are left out.
export function h(tag, attributes, ...children) {
  const drawn = attributes && attributes.viewBox;
  const element = SVG_TAGS.has(tag) || drawn
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// Make `old` look like `fresh` and touch only what differs: focus, selection and what is open stay.
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name === "value" || name === "style") continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  if (old.nodeName !== "SELECT") morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const byKey = new Map();
  for (const child of old.children) {
    if (child.dataset && child.dataset.key) byKey.set(child.dataset.key, child);
  }
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = child.dataset && child.dataset.key;
    const known = key ? byKey.get(key) : null;
    if (known) {
      if (known !== at) old.insertBefore(known, at);
      else at = at.nextSibling;
      morph(known, child);
    } else if (!key && at && !(at.dataset && at.dataset.key)) {
      const next = at.nextSibling;
      morph(at, child);
      at = next;
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// -- numbers ----------------------------------------------------------------------------------------

export const none = "–";
const whole = new Intl.NumberFormat("en");
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

export const count = (n) => (n === null || n === undefined ? none : whole.format(Math.round(n)));

export function rate(n) {
  if (n === null || n === undefined) return none;
  return n > 0 && n < 100 ? tenths.format(n) : whole.format(Math.round(n));
}

export function ms(n) {
  if (n === null || n === undefined) return none;
  if (n >= 1000) return `${tenths.format(n / 1000)} s`;
  return n < 10 ? `${tenths.format(n)} ms` : `${whole.format(Math.round(n))} ms`;
}

export function duration(s) {
  if (s === null || s === undefined) return none;
  if (s < 10) return `${tenths.format(s)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

export function clock(at) {
  return at ? new Date(at * 1000).toLocaleTimeString("en-GB") : none;
}

// -- charts -----------------------------------------------------------------------------------------

const WIDTH = 600, HEIGHT = 120;
const plots = new Map(); // name -> what its chart shows, for the pointer

const known = (values) => values.filter((v) => v !== null && v !== undefined);

// The top of the scale: a round number. One spike does not flatten all after it: it is cut off.
function roof(values) {
  const sorted = known(values).sort((a, b) => a - b);
  const high = sorted.at(-1) || 0, usual = sorted[Math.floor((sorted.length - 1) * 0.97)] || 0;
  const top = usual > 0 && high > 2.5 * usual ? 1.3 * usual : high;
  if (top <= 1) return 1;
  const unit = 10 ** Math.floor(Math.log10(top));
  return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * unit >= top * 0.999);
}

function path(values, at, width, height, top) {
  const from = at[0], span = at.at(-1) - from || 1;
  let drawn = "", pen = "M";
  values.forEach((value, n) => {
    if (value === null || value === undefined) { pen = "M"; return; }
    const x = ((at[n] - from) / span) * width, y = height - (Math.min(value, top) / top) * height;
    drawn += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return drawn;
}

// Lines over time, the first with its area: [{ name, values }]; `show` writes a value.
export function chart(name, label, at, lines, show) {
  const top = roof(lines.flatMap((line) => line.values)), first = lines[0].values;
  const [main, ...others] = lines.map((line) => path(line.values, at, WIDTH, HEIGHT, top));
  const peak = first.reduce((best, value, n) => (value > (first[best] ?? top) ? n : best), -1);
  const cut = peak >= 0 && first[peak] > top;
  const left = cut ? (100 * (at[peak] - at[0])) / (at.at(-1) - at[0] || 1) : 0;
  const steps = [top, top / 2, 0].map(show);
  if (steps[1] === steps[0] || steps[1] === steps[2]) steps[1] = "";  // half of one record
  plots.set(name, { at, lines, show });
  return h("div", { class: "plot" },
    h("div", { class: "ys" }, steps.map((step) => h("span", null, step))),
    h("div", { class: "area" },
      h("svg", {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img",
        "aria-label": label, "data-chart": name,
      },
      [0, HEIGHT / 2, HEIGHT].map((y) => h("line", { x1: 0, y1: y, x2: WIDTH, y2: y, class: "base" })),
      main && h("path", { d: `${main}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`, class: "under" }),
      others.map((d) => h("path", { d, class: "other" })),
      h("path", { d: main, class: "line" })),
      cut && h("span", { class: `peak${left > 50 ? " before" : ""}`, style: { left: `${left}%` } }, `▲ ${show(first[peak])}`)),
    h("div", { class: "xs" }, ends(at).map((end) => h("span", null, end))));
}

function ends(at) {
  if (at.length < 2) return ["", "now"];
  const first = clock(at[0]), middle = clock((at[0] + at.at(-1)) / 2);
  return [first, middle === first ? "" : middle, "now"];
}

export function spark(values) {
  const top = roof(values);
  return h("svg", { viewBox: "0 0 90 20", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" },
    h("path", { d: path(values, values.map((_, n) => n), 90, 18, top) }));
}

// The values under the pointer, in a box of its own: what is drawn anew each second stays as it is.
let pointer = null;

export function point(event) {
  pointer = event && event.target.closest && event.target.closest("svg.chart")
    ? { x: event.clientX, y: event.clientY } : null;
  follow();
}

export function follow() {
  const tip = document.getElementById("tip"), rule = document.getElementById("rule");
  const svg = pointer && document.elementFromPoint(pointer.x, pointer.y);
  const plot = svg && svg.closest("svg.chart") && plots.get(svg.closest("svg.chart").dataset.chart);
  tip.hidden = rule.hidden = !plot;
  if (!plot) return;
  const box = svg.closest("svg.chart").getBoundingClientRect(), { at, lines, show } = plot;
  const when = at[0] + ((pointer.x - box.left) / box.width) * (at.at(-1) - at[0]);
  const n = at.reduce((best, one, i) => (Math.abs(one - when) < Math.abs(at[best] - when) ? i : best), 0);
  const x = box.left + (box.width * (at[n] - at[0])) / (at.at(-1) - at[0] || 1);
  tip.replaceChildren(h("b", null, clock(at[n])),
    ...lines.map((line) => h("span", null, `${line.name} ${show(line.values[n])}`)));
  Object.assign(rule.style, { left: `${x}px`, top: `${box.top}px`, height: `${box.height}px` });
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  Object.assign(tip.style, { left: `${Math.max(8, Math.min(x + 12, room))}px`, top: `${box.top + 6}px` });
}

// -- tables -----------------------------------------------------------------------------------------

// columns: [title, cell(row), class, group]; a row with an address opens it on click, Enter, j and k.
// Columns of one group stand under its name; below a row stands `more(row)` where there is any.
export function table(columns, rows, keyOf, hrefOf, more) {
  const groups = [];
  for (const [, , kind, group = ""] of columns) {
    const last = groups.at(-1), narrow = kind && kind.includes("wide");
    if (last && last.group === group && last.narrow === narrow) last.count += 1;
    else groups.push({ group, count: 1, narrow, first: !last || last.group !== group });
  }
  const headed = groups.some(({ group }) => group);
  return h("div", { class: "scroll" }, h("table", null,
    h("thead", null,
      headed && h("tr", { class: "groups" }, groups.map(({ group, count: span, narrow, first }) =>
        h("th", { colspan: span, class: `${narrow ? "wide " : ""}${group && first ? "group" : ""}`, scope: "colgroup" }, first ? group : ""))),
      h("tr", null, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
    h("tbody", null, rows.map((row) => {
      const href = hrefOf && hrefOf(row), below = more && more(row);
      return [
        h("tr", { "data-key": keyOf(row), "data-href": href, class: below && "above" },
          columns.map(([, cell, kind], at) => {
            const shown = cell(row);
            return h("td", { class: kind }, at === 0 && href ? h("a", { href }, shown) : shown);
          })),
        below && h("tr", { "data-key": `${keyOf(row)} more`, class: "more" }, h("td", { colspan: columns.length }, h("div", null, below))),
      ];
    }))));
}
