
"use strict";

// Tables: a heading sorts its column, first upwards, then downwards. Cells without a number go last.
function sortKey(row, column) {
  const cell = row.cells[column];
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
}

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b, undefined, { numeric: true });
  if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
  return a - b;
}

function sortTable(table, heading) {
  const upwards = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", upwards ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [sortKey(row, heading.cellIndex), row]);
  const missing = ([key]) => Number.isNaN(key);
  rows.sort((a, b) => (upwards || missing(a) || missing(b) ? 1 : -1) * compare(a[0], b[0]));
  body.append(...rows.map(([, row]) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const button of table.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortTable(table, button.parentElement));
  }
}

// The switch between classifiers as trained and after temperature scaling.
for (const choice of document.querySelectorAll("input[name=view]")) {
  choice.addEventListener("change", () => { document.body.dataset.view = choice.value; });
}

// Mixed sets: a slider moves the sprite behind its window.
function showMember(set) {
  const slider = set.querySelector("input");
  const requested = set.dataset.requested.split(" ");
  const annotated = set.dataset.annotated?.split(" ");  // none before the sets are annotated
  const k = slider.valueAsNumber;
  const image = set.querySelector("img");
  image.style.width = `${100 * requested.length}%`;
  image.style.transform = `translateX(${(-100 * k) / requested.length}%)`;
  set.querySelector(".requested").style.width = `${100 * requested[k]}%`;
  const values = [["requested", requested[k]], ...(annotated ? [["annotated", annotated[k]]] : [])];
  for (const [name, value] of values) set.querySelector(`.fill.${name}`).style.width = `${100 * value}%`;
  set.querySelector("output").textContent = values.map(([name, value]) => `λ ${name} ${value}`).join("\n");
  slider.setAttribute("aria-valuetext", values.map(([name, value]) => `${name} ${value}`).join(", "));
}

const sets = document.querySelectorAll(".set");
for (const set of sets) {
  set.querySelector("input").addEventListener("input", () => showMember(set));
  showMember(set);
}

document.getElementById("walk")?.addEventListener("input", (event) => {
  for (const set of sets) {
    set.querySelector("input").value = event.target.value;
    showMember(set);
  }
});

const pick = document.getElementById("pick");
function showPicked() {
  sets.forEach((set, k) => {
    const shown = { few: k % Math.ceil(sets.length / 12) === 0, all: true }[pick.value];
    set.hidden = !(shown ?? set.dataset.classes.split(" ").includes(pick.value));
  });
}
pick?.addEventListener("change", showPicked);
if (pick) showPicked();
