// The figures, the block map and the tables of a report. The data lie in the page; nothing is fetched.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

// The library's own defaults offer to upload a figure to its makers.
const settings = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };

for (const [name, figure] of Object.entries(data.figures || {})) {
  Plotly.newPlot(name, figure.data, figure.layout, settings);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const column = [...head.parentElement.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const downwards = head.getAttribute("aria-sort") === "ascending";
    const value = (row) => JSON.parse(row.cells[column].dataset.value);
    const compare = (a, b) => (a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1);
    const rows = [...body.rows].sort((a, b) => compare(value(a), value(b)) * (downwards ? -1 : 1));
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", downwards ? "descending" : "ascending");
    body.append(...rows);
  });
}

if (data.block_map) showBlockMap(data.block_map);

// A frame's cells are hexadecimal digits: the state (2 bits), 4 if a block was evicted, 8 if one was let go.
function showBlockMap(map) {
  const states = [["free", "#e6e6e6"], ["cached, not in use", "#8ecae6"], ["private", "#0072b2"], ["shared", "#e69f00"]];
  const marks = [["evicted in this step", "#d55e00"], ["released in this step", "#000000"]];
  const canvas = document.getElementById("pool");
  const slider = document.getElementById("slider");
  const play = document.getElementById("play");
  const size = Math.max(2, Math.min(24, Math.floor(1060 / map.columns)));
  const numRows = Math.ceil(map.num_cells / map.columns);
  canvas.width = size * map.columns;
  canvas.height = size * numRows;
  const context = canvas.getContext("2d");
  let film = null;
  let timer = null;

  const swatches = states.map(([text, colour]) => `<span><i style="background:${colour}"></i>${text}</span>`);
  const dots = marks.map(([text, colour]) => `<span><i class="dot" style="background:${colour}"></i>${text}</span>`);

  function draw() {
    const frame = film.frames[slider.value];
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, canvas.width, canvas.height);
    const gap = size > 4 ? 1 : 0;
    for (let cell = 0; cell < map.num_cells; cell++) {
      const digit = parseInt(frame.cells[cell], 16);
      const x = (cell % map.columns) * size;
      const y = Math.floor(cell / map.columns) * size;
      context.fillStyle = states[digit & 3][1];
      context.fillRect(x, y, size - gap, size - gap);
      if (digit & 12) {
        const dot = Math.max(2, Math.floor(size / 2));
        const inset = Math.floor((size - gap - dot) / 2);
        context.fillStyle = marks[digit & 4 ? 0 : 1][1];
        context.fillRect(x + inset, y + inset, dot, dot);
      }
    }
    const caption = document.getElementById("caption");
    caption.textContent = frame.text;
    if (frame.preempted) {
      const strong = document.createElement("strong");
      strong.textContent = ` ${frame.preempted}`;
      caption.append(strong);
    }
  }

  function choose(chosen) {
    stop();
    film = chosen;
    slider.max = film.frames.length - 1;
    slider.value = film.start;
    document.getElementById("legend").innerHTML = swatches.concat(film.has_marks ? dots : []).join("");
    draw();
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "▶ play";
  }

  for (const [index, each] of map.films.entries()) {
    const label = document.createElement("label");
    const choice = document.createElement("input");
    choice.type = "radio";
    choice.name = "film";
    choice.checked = index === 0;
    choice.addEventListener("change", () => choose(each));
    label.append(choice, ` ${each.name} `);
    document.getElementById("films").append(label);
  }
  slider.addEventListener("input", () => {
    stop();
    draw();
  });
  play.addEventListener("click", () => {
    if (timer) {
      stop();
      return;
    }
    if (Number(slider.value) === Number(slider.max)) slider.value = 0;
    play.textContent = "❚❚ pause";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      draw();
      if (Number(slider.value) === Number(slider.max)) stop();
    }, 150);
  });
  canvas.addEventListener("mousemove", (event) => {
    const scale = canvas.width / canvas.clientWidth;
    const column = Math.floor((event.offsetX * scale) / size);
    const cell = Math.floor((event.offsetY * scale) / size) * map.columns + column;
    if (column >= map.columns || cell >= map.num_cells) return;
    const first = 1 + cell * map.blocks_per_cell;
    const last = Math.min(first + map.blocks_per_cell - 1, map.num_blocks);
    const state = states[parseInt(film.frames[slider.value].cells[cell], 16) & 3][0];
    const which = first === last ? `block ${first}` : `blocks ${first} to ${last}, most of them`;
    document.getElementById("pointed").textContent = `${which}: ${state}`;
  });
  choose(map.films[0]);
}
