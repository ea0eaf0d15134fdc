// The figures of a page: in the colours of its theme, and with one zoom for all that have a time axis.
"use strict";

// The library's own defaults offer to upload a figure to its makers.
const settings = {
  responsive: true,
  displaylogo: false,
  showSendToCloud: false,
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
};
const theme = window.matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Figures by name. `listeners` are told of the times that are clicked.
class Figures {
  constructor(drawn) {
    this.drawn = drawn;
    this.listeners = [];
    this.time = null;
    this.isLinking = false;
    for (const name of Object.keys(drawn)) this.draw(name);
    theme.addEventListener("change", () => Object.keys(this.drawn).forEach((name) => this.draw(name)));
  }

  // Draw a figure, anew if it is there; what the reader zoomed into stays.
  draw(name) {
    const element = document.getElementById(name);
    const text = JSON.stringify(this.drawn[name]);
    const figure = JSON.parse(theme.matches ? text.replaceAll('"#000000"', '"#e6e6e6"') : text);
    const layout = figure.layout;
    Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: "kept" });
    layout.template.layout.font.color = colour("text");
    layout.template.layout.hoverlabel = { bgcolor: colour("box"), font: { color: colour("text") } };
    for (const axis of ["xaxis", "yaxis"]) {
      Object.assign(layout.template.layout[axis], { gridcolor: colour("grid"), linecolor: colour("faint") });
    }
    layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: colour("faint"), activecolor: colour("accent") };
    layout.shapes = this.cursor(element);
    const isNew = !element.layout;
    Plotly.react(element, figure.data, layout, settings);
    if (isNew && element.classList.contains("time")) this.link(element);
  }

  add(name, figure) {
    this.drawn[name] = figure;
    this.draw(name);
  }

  timeFigures() {
    return [...document.querySelectorAll(".figure.time")].filter((element) => element.layout);
  }

  link(element) {
    element.on("plotly_relayout", (change) => {
      if (this.isLinking) return;
      const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] === undefined && !change["xaxis.autorange"]) return;
      const wanted = change["xaxis.autorange"] ? { "xaxis.autorange": true } : { "xaxis.range": range.slice() };
      this.isLinking = true;
      const others = this.timeFigures().filter((other) => other !== element);
      Promise.all(others.map((other) => Plotly.relayout(other, { ...wanted }))).finally(() => (this.isLinking = false));
    });
    element.on("plotly_click", (event) => this.listeners.forEach((listener) => listener(event.points[0].x)));
  }

  cursor(element) {
    if (this.time === null || !element.classList.contains("time")) return [];
    const line = { color: colour("warning-line"), width: 1.5, dash: "dot" };
    return [{ type: "line", yref: "paper", x0: this.time, x1: this.time, y0: 0, y1: 1, line }];
  }

  // Mark a time in all figures that have a time axis.
  setTime(seconds) {
    this.time = seconds;
    for (const element of this.timeFigures()) Plotly.relayout(element, { shapes: this.cursor(element) });
  }
}
