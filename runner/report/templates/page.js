// The table's filters, the cases that open and close, and the theme. Without it the page shows everything.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const byId = (id) => document.getElementById(id);

  const theme = byId("theme");
  const setTheme = (word) => {
    if (word === "light" || word === "dark") root.dataset.theme = word;
    else delete root.dataset.theme;
    theme.value = root.dataset.theme || "";
  };
  // A file opened from a disk may have no storage.
  const kept = (use) => { try { return use(window.localStorage); } catch { return null; } };
  setTheme(kept((store) => store.getItem("symmem-check-theme")));
  theme.addEventListener("change", () => {
    setTheme(theme.value);
    kept((store) => store.setItem("symmem-check-theme", theme.value));
  });

  const rows = [...document.querySelectorAll("tr.case")].map((row) => ({
    row,
    more: row.nextElementSibling,
    button: row.querySelector("button"),
    name: row.querySelector(".name").textContent.toLowerCase(),
    cells: [...row.querySelectorAll("td[data-phase]")],
    open: false,
    shown: true,
  }));
  if (!rows.length) return;

  const show = (one) => {
    one.row.hidden = !one.shown;
    one.more.hidden = !(one.shown && one.open);
    one.button.setAttribute("aria-expanded", String(one.open));
  };
  const toggle = (one) => { one.open = !one.open; show(one); };

  const filters = ["by-outcome", "by-phase", "by-pool", "by-name"].map(byId);
  const [outcome, phase, pool, name] = filters;
  const fits = (one) => {
    const cells = one.cells.filter((cell) => !phase.value || cell.dataset.phase === phase.value);
    const judged = cells.some((cell) => cell.dataset.outcome && (!outcome.value || cell.dataset.outcome === outcome.value));
    return (judged || !(outcome.value || phase.value))
      && (!pool || !pool.value || one.row.dataset.pool === pool.value)
      && one.name.includes(name.value.trim().toLowerCase());
  };
  const filter = () => {
    for (const one of rows) { one.shown = fits(one); show(one); }
    for (const cell of document.querySelectorAll("table.cases [data-phase]")) {
      cell.hidden = Boolean(phase.value) && cell.dataset.phase !== phase.value;
    }
    const columns = document.querySelectorAll("table.cases > thead th:not([hidden])").length;
    for (const one of rows) one.more.cells[0].colSpan = columns;
    const left = rows.filter((one) => one.shown).length;
    const cases = rows.length === 1 ? "case" : "cases";
    byId("count").textContent = left === rows.length ? `${left} ${cases}` : `${left} of ${rows.length} ${cases}`;
    byId("none").hidden = left > 0;
  };
  for (const one of filters) if (one) one.addEventListener(one === name ? "input" : "change", filter);
  document.querySelector("form.filters").addEventListener("submit", (event) => event.preventDefault());
  byId("all").addEventListener("click", () => {
    for (const one of filters) if (one) one.value = "";
    filter();
    outcome.focus();
  });

  const goTo = () => {
    const one = rows.find(({ row }) => `#${row.id}` === window.location.hash);
    if (one) { one.open = true; show(one); one.row.scrollIntoView(); }
  };
  for (const one of rows) {
    one.open = "open" in one.row.dataset;
    one.button.addEventListener("click", () => toggle(one));
  }
  filter();
  goTo();
  // A browser that goes back in its history puts the filters' old values in by then.
  window.addEventListener("pageshow", filter);
  window.addEventListener("hashchange", goTo);
})();
