"use strict";
(() => {
  const form = document.getElementById("filter");
  const shown = document.getElementById("shown");
  const rows = [...document.querySelectorAll("[data-states]")];
  // With several implementations the matrix has a row for each clause, with one the list of clauses has.
  const matrix = rows.filter((row) => row.matches(".matrix tr"));
  const clauses = matrix.length ? matrix : rows.filter((row) => row.matches(".clause"));
  const texts = new Map();

  // What a row says, without the scripts and the cells: those would be found for every word.
  const textOf = (row) => {
    if (!texts.has(row)) {
      const parts = row.matches("tr") ? [row] : row.querySelectorAll(".id, .said, .text, .message, .seen");
      texts.set(row, [...parts].map((part) => part.textContent).join(" ").toLowerCase());
    }
    return texts.get(row);
  };

  const filter = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const { level, hooks, states } = row.dataset;
      row.hidden = !((!wanted.level || level === wanted.level)
        && (!wanted.hook || hooks.split(" ").includes(wanted.hook))
        && (!wanted.state || states.split("|").includes(wanted.state))
        && words.every((word) => textOf(row).includes(word)));
    }
    const left = clauses.filter((row) => !row.hidden).length;
    shown.value = left === clauses.length ? `${left} clauses` : `${left} of ${clauses.length} clauses`;
  };

  const openTarget = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.hidden) { form.reset(); filter(); }
    if (target.matches("details")) target.open = true;
    target.scrollIntoView();
  };

  const copy = async (button) => {
    const script = button.closest("details").querySelector("pre");
    const note = button.parentElement.querySelector(".copied");
    let done = false;
    try {
      await navigator.clipboard.writeText(script.textContent);
      done = true;
    } catch {
      // Not every browser allows the clipboard to a page that was opened as a file.
      getSelection().selectAllChildren(script);
      done = document.execCommand("copy");
    }
    note.textContent = done ? "Copied." : "Not allowed here; the script is selected.";
  };

  document.documentElement.classList.add("js");
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (button) copy(button);
  });
  addEventListener("hashchange", openTarget);
  addEventListener("beforeprint", () => {
    for (const finding of document.querySelectorAll("details.finding")) finding.open = true;
  });
  filter();
  openTarget();
})();
