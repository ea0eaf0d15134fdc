// The film of the pool's blocks. A cell is a digit: its state (3 bits), 8 if a block was evicted, 16 if one was let go.
"use strict";

const STATES = ["free", "cached", "private", "shared", "pinned", "null"];
const STATE_WORDS = {
  free: "free",
  cached: "cached, held by nobody",
  private: "held by one request",
  shared: "shared by requests",
  pinned: "pinned for a session's next turn",
  null: "the null block, which holds nothing",
};
const PATTERN_FROM = 7; // pixels of a cell that have room for a pattern

// `listeners` are told the time of the frame that is shown.
class BlockMap {
  constructor(map, requests) {
    this.map = map;
    this.requests = requests;
    this.listeners = [];
    this.chosen = null;
    this.timer = null;
    this.canvas = document.getElementById("pool");
    this.slider = document.getElementById("slider");
    this.play = document.getElementById("play");
    const each = map.blocks_per_cell;
    document.getElementById("scale").textContent = `One cell = ${each} block${each > 1 ? "s" : ""}.`;
    map.films.forEach((film, index) => this.addFilm(film, index));
    this.slider.addEventListener("input", () => {
      this.stop();
      this.draw();
    });
    this.play.addEventListener("click", () => this.toggle());
    document.getElementById("block-map").addEventListener("keydown", (event) => this.pressed(event));
    for (const kind of ["mousemove", "click"]) this.canvas.addEventListener(kind, (event) => this.point(event));
    new ResizeObserver(() => this.fit()).observe(document.getElementById("block-map"));
    theme.addEventListener("change", () => this.fit());
    this.choose(map.films[0]);
  }

  addFilm(film, index) {
    const label = document.createElement("label");
    const choice = document.createElement("input");
    choice.type = "radio";
    choice.name = "film";
    choice.checked = index === 0;
    choice.addEventListener("change", () => this.choose(film));
    label.append(choice, ` ${film.name} `);
    document.getElementById("films").append(label);
  }

  choose(film) {
    this.stop();
    this.film = film;
    this.at = -1;
    this.slider.max = film.frames.length - 1;
    this.slider.value = film.start;
    this.fit();
  }

  // As many columns as the page has room for.
  fit() {
    const width = document.getElementById("block-map").clientWidth;
    const room = width * Math.max(200, Math.min(420, width));
    this.size = Math.max(2, Math.min(24, Math.floor(Math.sqrt(room / this.map.num_cells))));
    this.columns = Math.max(1, Math.floor(width / this.size));
    this.ratio = window.devicePixelRatio || 1;
    const rows = Math.ceil(this.map.num_cells / this.columns);
    this.canvas.width = this.columns * this.size * this.ratio;
    this.canvas.height = rows * this.size * this.ratio;
    this.canvas.style.width = `${this.columns * this.size}px`;
    this.canvas.style.height = `${rows * this.size}px`;
    this.tiles = STATES.map((state) => this.tile(state, this.size));
    this.draw();
  }

  // A cell of a state: a colour, and a pattern that tells it without the colour.
  tile(state, size) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(size * this.ratio);
    const context = tile.getContext("2d");
    context.scale(this.ratio, this.ratio);
    const side = size - (size > 4 ? 1 : 0);
    context.fillStyle = colour(state);
    context.fillRect(0, 0, side, side);
    context.strokeStyle = colour(state === "cached" ? "on-light-cell" : "on-cell");
    context.lineWidth = Math.max(1, side / 8);
    if (size < PATTERN_FROM) return tile;
    const [low, middle, high] = [side * 0.22, side / 2, side * 0.78];
    const lines = {
      cached: [[low, high, high, low]],
      shared: [[low, middle, high, middle], [middle, low, middle, high]],
      null: [[low, low, high, high], [low, high, high, low]],
    }[state];
    context.beginPath();
    for (const [x, y, toX, toY] of lines || []) {
      context.moveTo(x, y);
      context.lineTo(toX, toY);
    }
    if (state === "pinned") context.rect(low, low, high - low, high - low);
    context.stroke();
    return tile;
  }

  // Evicted: a filled diamond; released: a ring.
  mark(context, x, y, size, isEvicted) {
    const radius = Math.max(1.5, size * 0.3);
    context.beginPath();
    if (isEvicted) {
      context.fillStyle = colour("evicted");
      context.moveTo(x, y - radius);
      context.lineTo(x + radius, y);
      context.lineTo(x, y + radius);
      context.lineTo(x - radius, y);
      context.fill();
    } else {
      context.strokeStyle = colour("released");
      context.lineWidth = Math.max(1, size / 8);
      context.arc(x, y, radius, 0, 7);
      context.stroke();
    }
  }

  // Who holds what in the frame: replayed from the first frame on, if need be.
  follow(frame) {
    if (!this.film.frames[0].changes) {
      this.blocks = null;
      return;
    }
    if (frame < this.at || this.at < 0) {
      this.blocks = new Map();
      this.at = -1;
    }
    for (; this.at < frame; this.at++) {
      const numbers = this.film.frames[this.at + 1].changes;
      for (let i = 0; i < numbers.length; ) {
        const [block, references, request, position, count] = numbers.slice(i, i + 5);
        this.blocks.set(block, { references, request, position, holders: numbers.slice(i + 5, i + 5 + count) });
        i += 5 + count;
      }
    }
  }

  litCells() {
    const lit = new Set();
    if (this.chosen === null || !this.blocks) return lit;
    for (const [block, { holders }] of this.blocks) {
      if (holders.includes(this.chosen)) lit.add(Math.floor(block / this.map.blocks_per_cell));
    }
    return lit;
  }

  draw() {
    const number = Number(this.slider.value);
    const frame = this.film.frames[number];
    if (!frame) return;
    this.follow(number);
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const lit = this.litCells();
    const counts = STATES.map(() => 0);
    for (let cell = 0; cell < this.map.num_cells; cell++) {
      const digit = parseInt(frame.cells[cell], 36);
      counts[digit & 7]++;
      const x = (cell % this.columns) * this.size * this.ratio;
      const y = Math.floor(cell / this.columns) * this.size * this.ratio;
      context.globalAlpha = this.chosen === null || lit.has(cell) ? 1 : 0.2;
      context.drawImage(this.tiles[digit & 7], x, y);
    }
    context.globalAlpha = 1;
    context.scale(this.ratio, this.ratio);
    for (let cell = 0; cell < this.map.num_cells; cell++) {
      const digit = parseInt(frame.cells[cell], 36);
      const x = (cell % this.columns) * this.size;
      const y = Math.floor(cell / this.columns) * this.size;
      if (digit & 24) this.mark(context, x + this.size / 2, y + this.size / 2, this.size, (digit & 8) > 0);
      if (!lit.has(cell)) continue;
      context.strokeStyle = colour("text");
      context.lineWidth = this.size > 12 ? 2 : 1;
      context.strokeRect(x + 0.5, y + 0.5, this.size - 1, this.size - 1);
    }
    this.describe(frame, lit.size);
    this.showLegend(counts);
    this.listeners.forEach((listener) => listener(frame.time_s));
  }

  describe(frame, numLit) {
    const caption = document.getElementById("caption");
    caption.textContent = frame.text;
    const strong = document.createElement("strong");
    if (frame.preempted) strong.textContent += ` ${frame.preempted}`;
    if (this.chosen !== null) {
      const name = this.requests.rows[this.chosen][0];
      const cells = this.map.blocks_per_cell > 1 ? "cells with blocks" : "blocks";
      strong.textContent += this.blocks ? ` ${name} holds ${numLit} ${cells}.` : ` ${this.without()}`;
    }
    caption.append(strong);
    this.canvas.setAttribute("aria-label", `the blocks of the pool: ${caption.textContent}`);
  }

  showLegend(counts) {
    const entries = STATES.map((state, index) => [this.tile(state, 18), `${STATE_WORDS[state]}: ${counts[index]}`]);
    if (this.film.has_marks) {
      for (const [isEvicted, words] of [[true, "evicted in this step"], [false, "released in this step"]]) {
        const sample = this.tile("free", 18);
        this.mark(sample.getContext("2d"), 9, 9, 18, isEvicted);
        entries.push([sample, words]);
      }
    }
    const spans = entries.map(([sample, words]) => {
      const span = document.createElement("span");
      span.append(sample, words);
      return span;
    });
    document.getElementById("legend").replaceChildren(...spans);
  }

  point(event) {
    const column = Math.floor(event.offsetX / this.size);
    const cell = Math.floor(event.offsetY / this.size) * this.columns + column;
    if (column >= this.columns || cell < 0 || cell >= this.map.num_cells) return;
    const first = cell * this.map.blocks_per_cell;
    const last = Math.min(first + this.map.blocks_per_cell, this.map.num_blocks) - 1;
    const digit = parseInt(this.film.frames[this.slider.value].cells[cell], 36);
    const words = STATE_WORDS[STATES[digit & 7]];
    const which = first === last ? `block ${first}` : `blocks ${first} to ${last}, most of them`;
    document.getElementById("pointed").textContent = `${which}: ${words}${this.told(first, last)}`;
  }

  // References, requests and prefix of some blocks.
  told(first, last) {
    if (!this.blocks) return `. ${this.without()}`;
    const name = (index) => (index < 0 ? "a request that is not counted" : this.requests.rows[index][0]);
    if (first < last) {
      const holders = new Set();
      for (let block = first; block <= last; block++) this.blocks.get(block)?.holders.forEach((each) => holders.add(each));
      return holders.size ? `; held by ${[...holders].map(name).join(", ")}` : "; held by nobody";
    }
    const block = this.blocks.get(first);
    if (!block) return "";
    const parts = [`${block.references} reference${block.references === 1 ? "" : "s"}`];
    if (block.holders.length) parts.push(`held by ${block.holders.map(name).join(", ")}`);
    if (block.position >= 0) {
      const from = block.position * this.map.block_tokens;
      parts.push(`prefix: tokens ${from + 1} to ${from + this.map.block_tokens} of ${name(block.request)}`);
    }
    return `; ${parts.join("; ")}`;
  }

  without() {
    return "Who holds the blocks is too much for this page here; the film of single steps may tell.";
  }

  pressed(event) {
    if (event.target.type === "range" || event.target.type === "radio") return;
    const last = this.film.frames.length - 1;
    const at = Number(this.slider.value);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: last }[event.key];
    if (event.key === " " && event.target !== this.play) this.toggle();
    else if (to !== undefined) this.seek(to);
    else return;
    event.preventDefault();
  }

  seek(frame) {
    this.stop();
    this.slider.value = Math.max(0, Math.min(this.film.frames.length - 1, frame));
    this.draw();
  }

  // The last frame that is not after a time.
  seekTime(seconds) {
    const frames = this.film.frames;
    let frame = frames.findIndex((each) => each.time_s > seconds);
    if (frame < 0) frame = frames.length;
    this.seek(frame - 1);
  }

  // Light the blocks of a request, in a frame in which it holds some if there is one; null: of nobody.
  light(request) {
    this.chosen = request;
    const numbers = this.film.frames.map((frame) => frame.changes);
    if (request === null || !numbers[0]) {
      this.draw();
      return;
    }
    this.stop();
    const now = Number(this.slider.value);
    this.follow(now);
    if (!this.litCells().size) {
      const found = numbers.findIndex((_, frame) => {
        this.follow(frame);
        return this.litCells().size > 0;
      });
      if (found >= 0) this.slider.value = found;
    }
    this.draw();
  }

  toggle() {
    if (this.timer) {
      this.stop();
      return;
    }
    if (Number(this.slider.value) === Number(this.slider.max)) this.slider.value = 0;
    this.play.textContent = "❚❚ pause";
    this.timer = setInterval(() => {
      this.slider.value = Number(this.slider.value) + 1;
      this.draw();
      if (Number(this.slider.value) === Number(this.slider.max)) this.stop();
    }, 150);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "▶ play";
  }
}
