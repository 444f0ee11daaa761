// Elements, numbers and charts. Text becomes text nodes only: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "title"]);

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

function path(values, width, height, top) {
  const step = values.length > 1 ? width / (values.length - 1) : width;
  const y = (v) => (height - (v / top) * height).toFixed(1);
  let drawn = "", pen = "M";
  values.forEach((value, at) => {
    if (value === null || value === undefined) { pen = "M"; return; }
    drawn += `${pen}${(at * step).toFixed(1)} ${y(value)}`;
    pen = "L";
  });
  return drawn;
}

const roof = (...lines) => Math.max(1, ...lines.flat().filter((v) => v !== null && v !== undefined));

// A line over time with its area, and a second dashed one; the numbers stand beside it as text.
export function chart(label, values, other) {
  const width = 600, height = 120, top = roof(values, other || []);
  const line = path(values, width, height, top);
  return h("svg", {
    viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "chart", role: "img",
    "aria-label": label,
  },
    h("line", { x1: 0, y1: height, x2: width, y2: height, class: "base" }),
    line && h("path", { d: `${line}L${width} ${height}L0 ${height}Z`, class: "area" }),
    h("path", { d: line, class: "line" }),
    other && h("path", { d: path(other, width, height, top), class: "other" }));
}

export function spark(values) {
  return h("svg", { viewBox: "0 0 90 20", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" },
    h("path", { d: path(values, 90, 18, roof(values)) }));
}

export function span(history) {
  if (history.length < 2) return ["", "now"];
  return [`${duration(history[history.length - 1].at - history[0].at)} ago`, "now"];
}

// -- tables -----------------------------------------------------------------------------------------

// columns: [title, cell(row), class]; a row with an address opens it on click, Enter, j and k.
export function table(columns, rows, keyOf, hrefOf) {
  return h("div", { class: "scroll" }, h("table", null,
    h("thead", null, h("tr", null, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
    h("tbody", null, rows.map((row) => {
      const href = hrefOf && hrefOf(row);
      return h("tr", { "data-key": keyOf(row), "data-href": href },
        columns.map(([, cell, kind], at) => {
          const shown = cell(row);
          return h("td", { class: kind }, at === 0 && href ? h("a", { href }, shown) : shown);
        }));
    }))));
}
