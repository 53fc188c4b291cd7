// What the timelines are made of: elements, words for numbers, and where a block stands in its lane.
"use strict";
const parts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const BAR = 16;

  const html = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const svg = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const choice = (label, options) => {
    const select = html("select", {}, ...options.map(([value, text]) => html("option", { value }, text)));
    return { select, label: html("label", {}, `${label} `, select) };
  };
  const short = (text, room) => (text.length <= room ? text : `${text.slice(0, Math.max(room - 1, 1))}…`);
  const time = (nanoseconds) => {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (Math.abs(nanoseconds) >= size) return `${Number((nanoseconds / size).toPrecision(4))} ${unit}`;
    }
    return nanoseconds ? `${nanoseconds} ns` : "0";
  };
  const bytes = (number) => {
    if (number === null) return "size unknown";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    for (; number >= 1024 && unit < 4; unit += 1) number /= 1024;
    return `${Number(number.toPrecision(4))} ${units[unit]}`;
  };
  const rankName = (rank) => (rank < 0 ? "rank unknown" : `rank ${rank}`);
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

  // What is not symmetric is lower, and what is unknown hangs from the top: seen even where no pattern is.
  function place(state, top) {
    const height = state === "symmetric" ? BAR : 11;
    return { y: state === "unknown" ? top : top + BAR - height, height };
  }

  // Many small rectangles as one path a class: a browser draws a few paths much faster than thousands of elements.
  class Paths {
    constructor() { this.paths = new Map(); this.after = []; }

    add(look, x, y, width, height) {
      const line = `M${x.toFixed(2)} ${y}h${width.toFixed(2)}v${height}h-${width.toFixed(2)}z`;
      this.paths.set(look, (this.paths.get(look) ?? "") + line);
    }

    into(picture) {
      for (const [look, d] of this.paths) picture.append(svg("path", { d, class: look }));
      picture.append(...this.after);
    }
  }

  return { BAR, Paths, html, svg, choice, short, time, bytes, rankName, count, place };
})();
