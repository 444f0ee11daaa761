// Copy buttons of code blocks, and the versions where versions.json is published beside this one.
for (const block of document.querySelectorAll("div.highlight")) {
  const button = document.createElement("button");
  button.className = "pk-copy";
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this code");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").innerText.replace(/^\$ /gm, ""));
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  if (navigator.clipboard) block.append(button);
}

for (const table of document.querySelectorAll("article table")) {
  const frame = table.parentElement;
  if (frame.classList.contains("table-wrapper")) frame.tabIndex = 0; // scrolled by the keyboard too
}

const shown = document.querySelector(".pk-version[data-versions]");
const version = shown?.textContent.trim();
const versions = shown && new URL(shown.dataset.versions, location.href); // beside this version's folder
if (shown && location.href.startsWith(new URL(`${version}/`, versions)) && location.protocol !== "file:") {
  // ["0.3.0", "0.2.0"]: each is a folder there
  fetch(versions).then((answer) => (answer.ok ? answer.json() : [])).then((names) => {
    if (names.length < 2) return;
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Version");
    for (const name of names) select.append(new Option(name, name, false, name === version));
    shown.parentElement.after(select); // a link holds no control
    select.className = shown.className;
    shown.remove();
    select.addEventListener("change", () => { location.href = new URL(`${select.value}/`, versions); });
  }).catch(() => {});
}
