// Tables: those that stand on the page can be sorted; that of the requests can be filtered too.
"use strict";

const compare = (a, b) => (a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1);

// Mark by which column a table is sorted; whether it is downwards now.
function turnSorting(head) {
  const downwards = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", downwards ? "descending" : "ascending");
  return downwards;
}

function sortOnClick(button) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const column = [...head.parentElement.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const value = (row) => JSON.parse(row.cells[column].dataset.value);
    const sign = turnSorting(head) ? -1 : 1;
    body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b)) * sign));
  });
}

// The requests of a run. `listeners` are told which one was chosen, by its number.
class RequestTable {
  constructor(table, figures) {
    this.table = table;
    this.figures = figures;
    this.listeners = [];
    this.names = Object.keys(table.columns);
    this.order = table.rows.map((_, index) => index);
    this.chosen = null;
    this.numShown = 100;
    this.root = document.getElementById("requests");
    const row = this.root.querySelector("thead tr");
    Object.values(table.columns).forEach((heading, column) => {
      const head = document.createElement("th");
      head.scope = "col";
      const button = document.createElement("button");
      button.textContent = heading;
      button.addEventListener("click", () => {
        const sign = turnSorting(head) ? -1 : 1;
        this.order.sort((a, b) => compare(table.rows[a][column], table.rows[b][column]) * sign || a - b);
        this.show();
      });
      head.append(button);
      row.append(head);
    });
    this.filter = document.getElementById("filter");
    this.filter.addEventListener("input", () => {
      this.numShown = 100;
      this.show();
    });
    document.getElementById("more").addEventListener("click", () => {
      this.numShown += 1000;
      this.show();
    });
    this.show();
  }

  // What the filter asks of a row: words that stand in it, or comparisons such as ttft>2.
  test() {
    const parts = this.filter.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const tests = parts.map((part) => {
      const [, name, sign, number] = part.match(/^([a-z0-9]+)(<|>|=)([\d.]+)$/) || [];
      const column = this.names.indexOf(name);
      if (column < 0) return (row) => [row[0], row.at(-1)].some((text) => String(text).toLowerCase().includes(part));
      return (row) => {
        const value = row[column];
        if (value === null) return false;
        return sign === "<" ? value < number : sign === ">" ? value > Number(number) : value === Number(number);
      };
    });
    return (row) => tests.every((each) => each(row));
  }

  show() {
    const passes = this.test();
    const found = this.order.filter((index) => passes(this.table.rows[index]));
    const body = this.root.querySelector("tbody");
    body.replaceChildren(...found.slice(0, this.numShown).map((index) => this.row(index)));
    const shown = Math.min(found.length, this.numShown);
    const of = found.length === this.order.length ? "" : ` of ${this.order.length.toLocaleString("en")}`;
    document.getElementById("shown").textContent =
      `${shown.toLocaleString("en")} shown, ${found.length.toLocaleString("en")}${of} match`;
    document.getElementById("more").hidden = shown === found.length;
  }

  row(index) {
    const row = document.createElement("tr");
    row.tabIndex = 0;
    row.dataset.index = index;
    if (index === this.chosen) row.setAttribute("aria-selected", "true");
    for (const value of this.table.rows[index]) {
      const text = value === null ? "-" : typeof value === "number" ? value.toLocaleString("en") : value;
      row.insertCell().textContent = text;
    }
    row.addEventListener("click", () => this.choose(index));
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.choose(index);
      const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
      if (next) {
        event.preventDefault();
        next.focus();
      }
    });
    return row;
  }

  // Show the life of a request; chosen again, it is let go.
  choose(index) {
    this.chosen = index === this.chosen ? null : index;
    for (const row of this.root.querySelectorAll("tbody tr")) {
      row.toggleAttribute("aria-selected", false);
      if (Number(row.dataset.index) === this.chosen) row.setAttribute("aria-selected", "true");
    }
    document.getElementById("life").hidden = this.chosen === null;
    if (this.chosen !== null) this.showLife(this.chosen);
    this.listeners.forEach((listener) => listener(this.chosen));
  }

  showLife(index) {
    const colours = ["#cccccc", "#56B4E9", "#0072B2", "#D55E00"];
    const patterns = ["/", "", "", "x"];
    const names = this.table.phase_names;
    const data = names.map((name, kind) => {
      const phases = this.table.phases[index].filter((phase) => phase[0] === kind);
      return {
        type: "bar",
        orientation: "h",
        name,
        showlegend: false,
        base: phases.map((phase) => phase[1]),
        x: phases.map((phase) => phase[2] - phase[1]),
        y: phases.map(() => name),
        text: phases.map((phase) => phase[3]),
        textposition: "none",
        customdata: phases.map((phase) => phase[2]),
        marker: { color: colours[kind], line: { width: 1, color: "#777777" }, pattern: { shape: patterns[kind] } },
        hovertemplate: "%{base:,.3f} to %{customdata:,.3f} s<br>%{text}<extra>%{y}</extra>",
      };
    });
    const times = this.table.phases[index].flatMap((phase) => [phase[1], phase[2]]);
    const margin = 0.03 * (Math.max(...times) - Math.min(...times)) || 0.001;
    const layout = {
      template: { layout: { font: { family: "system-ui, sans-serif", size: 13 }, xaxis: {}, yaxis: {} } },
      barmode: "overlay",
      margin: { l: 80, r: 20, t: 10, b: 45 },
      xaxis: { title: { text: "simulated time (s)" }, range: [Math.min(...times) - margin, Math.max(...times) + margin] },
      yaxis: { type: "category", categoryarray: [...names].reverse(), range: [-0.5, names.length - 0.5] },
    };
    document.getElementById("life-of").textContent = `The life of ${this.table.rows[index][0]}`;
    if (times.length) {
      Plotly.purge("waterfall");
      this.figures.add("waterfall", { data, layout });
    }
  }
}
