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
if (shown && location.protocol.startsWith("http")) {
  // versions.json: ["0.3.0", "0.2.0"]; each is a folder beside this one.
  fetch(shown.dataset.versions)
    .then((answer) => (answer.ok ? answer.json() : []))
    .then((versions) => {
      if (versions.length < 2) return;
      const select = document.createElement("select");
      select.setAttribute("aria-label", "Version");
      for (const version of versions) {
        select.append(new Option(version, version, false, version === shown.textContent.trim()));
      }
      const root = new URL(shown.dataset.versions, location.href);
      select.addEventListener("click", (event) => event.preventDefault());
      select.addEventListener("change", () => { location.href = new URL(`${select.value}/`, root); });
      shown.replaceChildren(select);
    })
    .catch(() => {});
}
