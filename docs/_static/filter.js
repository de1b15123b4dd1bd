// Selections above each table of the class "ch-filter": its rows have classes such as "level=MUST".
"use strict";

const TITLES = { level: "Level", hook: "Object", version: "Since" };

for (const table of document.querySelectorAll("table.ch-filter")) {
  const rows = [...table.tBodies[0].rows];
  const values = new Map();
  for (const row of rows) {
    for (const [, name, value] of row.className.matchAll(/(\S+?)=(\S+)/g)) {
      if (!values.has(name)) values.set(name, new Set());
      values.get(name).add(value);
    }
  }

  const form = document.createElement("form");
  form.className = "ch-controls";
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Filter the clauses");
  form.addEventListener("submit", (event) => event.preventDefault());

  const selections = new Map();
  for (const [name, found] of values) {
    const selection = document.createElement("select");
    selection.name = name;
    selection.add(new Option("all", ""));
    for (const value of found) selection.add(new Option(value.replaceAll("_", " "), value));
    selections.set(name, selection);
    form.append(labelled(TITLES[name] || name, selection));
  }
  const text = document.createElement("input");
  text.type = "search";
  text.name = "text";
  text.placeholder = "id or words";
  form.append(labelled("Text", text));
  const count = document.createElement("output");
  form.append(count);

  const show = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const chosen = [...selections].every(([name, { value }]) => !value || row.classList.contains(`${name}=${value}`));
      const said = words.length ? row.textContent.toLowerCase() : "";
      row.hidden = !(chosen && words.every((word) => said.includes(word)));
      shown += row.hidden ? 0 : 1;
    }
    count.value = `${shown} of ${rows.length} clauses`;
  };
  form.addEventListener("input", show);
  for (const name of table.querySelectorAll("td code")) breakable(name);
  (table.closest(".table-wrapper") || table).before(form);
  show();
}

function labelled(title, control) {
  const label = document.createElement("label");
  label.append(title, " ", control);
  return label;
}

// Lets a long name go on in the next line between its words, not within one.
function breakable(name) {
  for (const leaf of [...name.querySelectorAll("*"), name].filter((each) => !each.children.length)) {
    const parts = leaf.textContent.split(/(?<=[._])/);
    leaf.replaceChildren(...parts.flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part])));
  }
}
