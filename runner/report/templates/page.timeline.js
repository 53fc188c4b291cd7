// The timelines: each case's collectives by rank, as SVG, drawn when their case opens and again at each change.
"use strict";
(() => {
  const { BAR, Paths, html, svg, choice, short, time, bytes, rankName, count, place } = parts;
  const { letters, timelines } = JSON.parse(document.getElementById("data").textContent);
  const STATES = { symmetric: "symmetric", ineligible: "not eligible", unknown: "unknown", fallback: "fell back" };
  const WORST = Object.keys(STATES);
  const PHASES = ["forward", "backward", "recompute", "optimizer"];
  const GATE = { recompute: "backward" };
  const AXIS = 20, HEAD = 17, LANE = 22, GAP = 8;
  const LEAST = 2; // pixels that a block is wide at least
  const MOST_LANES = 48;

  const badness = (block) => WORST.indexOf(block.shown.sort.state);

  class Timeline {
    constructor(place, data, name) {
      Object.assign(this, { place, data, name, picked: null, all: false });
      this.sorts = data.sorts.map((row) => Object.fromEntries(data.fields.map((field, at) => [field, row[at]])));
      this.build();
      this.load();
    }

    build() {
      const steps = this.data.steps.map(({ step }, at) => [at, step === null ? "outside any step" : `step ${step}`]);
      this.step = choice("Step", steps);
      this.by = choice("A lane for each", [["group", "rank and group"], ["kind", "rank and kind"], ["rank", "rank"]]);
      this.rank = choice("Ranks", []);
      const zoom = html("span", { class: "zoom", role: "group", "aria-label": "Zoom" });
      this.buttons = {};
      for (const [key, text, told] of [["earlier", "←", "Earlier"], ["later", "→", "Later"], ["out", "−", "Zoom out"],
        ["in", "+", "Zoom in"], ["whole", "Whole step", "Whole step"]]) {
        const button = html("button", { type: "button", "aria-label": told, title: told }, text);
        button.addEventListener("click", () => this.move(key));
        this.buttons[key] = button;
        zoom.append(button);
      }
      const hint = `hint-${this.place.dataset.timeline}`;
      this.chart = html("div", {
        class: "chart", tabindex: 0, role: "application", "aria-roledescription": "timeline",
        "aria-label": `Timeline of ${this.name}`, "aria-describedby": hint,
      });
      this.told = html("div", { class: "told", "aria-live": "polite" });
      this.hint = html("p", { class: "hint", id: hint }, "Point at a collective or tap it, or come here with the Tab key and go "
        + "along with the arrow keys; plus and minus zoom, 0 shows the whole step.");
      this.told.append(html("p", { class: "hint" }, this.hint.textContent));
      this.hint.className = "unseen";
      this.legend = html("ul", { class: "legend", "aria-label": "What the colours, letters and patterns mean" });
      this.notes = html("div", { class: "quiet" });
      const labels = [this.data.steps.length > 1 && this.step.label, this.rank.label, this.by.label].filter(Boolean);
      this.place.replaceChildren(
        html("div", { class: "tools" }, ...labels, zoom), this.chart, this.hint, this.told, this.legend, this.notes,
      );
      this.step.select.addEventListener("change", () => this.load());
      for (const { select } of [this.by, this.rank]) select.addEventListener("change", () => { this.group(); this.draw(); });
      this.chart.addEventListener("keydown", (event) => this.key(event));
      this.chart.addEventListener("pointermove", (event) => this.tell(this.at(event) ?? this.picked));
      this.chart.addEventListener("pointerleave", () => this.tell(this.picked));
      this.chart.addEventListener("click", (event) => { const found = this.at(event); if (found) this.pick(found); });
    }

    // The blocks of the step that is chosen.
    load() {
      const numbers = this.data.steps[Number(this.step.select.value) || 0].blocks;
      this.items = [];
      for (let at = 0; at < numbers.length; at += 5) {
        const [rank, sort, start, length, number] = numbers.slice(at, at + 5);
        this.items.push({ rank, sort: this.sorts[sort], start, end: start + length, number });
      }
      this.length = this.items.reduce((last, { end }) => Math.max(last, end), 1);
      this.view = [0, this.length];
      this.picked = null;
      const ranks = [...new Set(this.items.map(({ rank }) => rank))].sort((a, b) => a - b);
      const options = [["", `all ${ranks.length}`], ...ranks.map((rank) => [rank, rankName(rank)])];
      this.rank.select.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
      this.rank.label.hidden = ranks.length < 2;
      this.group();
      this.draw();
    }

    // The lanes: for each rank, its collectives by group or kind, in the order of their start.
    group() {
      const only = this.rank.select.value, by = this.by.select.value;
      const ranks = new Map();
      for (const item of this.items) {
        if (only !== "" && item.rank !== Number(only)) continue;
        if (!ranks.has(item.rank)) ranks.set(item.rank, { rank: item.rank, items: [], lanes: new Map() });
        const rank = ranks.get(item.rank);
        const { group, size, kind } = item.sort;
        const label = by === "rank" ? "all" : by === "kind" ? kind : `${group ?? "group unknown"}${size ? ` (${size})` : ""}`;
        if (!rank.lanes.has(label)) rank.lanes.set(label, { label, rank: item.rank, items: [] });
        rank.lanes.get(label).items.push(item);
        rank.items.push(item);
      }
      this.ranks = [...ranks.values()].sort((a, b) => a.rank - b.rank);
      for (const rank of this.ranks) {
        rank.lanes = [...rank.lanes.values()].sort((a, b) => (a.label < b.label ? -1 : 1));
      }
      this.drawLegend();
    }

    draw() {
      this.width = this.chart.clientWidth;
      if (!this.width) return;
      this.gutter = this.width < 520 ? 84 : 150;
      this.room = this.width - this.gutter - 1;
      this.drawn = [];
      const picture = svg("svg", { "aria-hidden": "true", focusable: "false" });
      let y = AXIS, left = 0;
      for (const rank of this.ranks) {
        if (!this.all && this.drawn.length && this.drawn.length + rank.lanes.length > MOST_LANES) {
          left += rank.lanes.length;
          continue;
        }
        this.drawRank(picture, rank, y);
        y += HEAD + rank.lanes.length * LANE + GAP;
      }
      this.drawAxis(picture, y - GAP);
      picture.setAttribute("height", y);
      picture.setAttribute("viewBox", `0 0 ${this.width} ${y}`);
      this.marker = svg("rect", { class: "picked", rx: 2, visibility: "hidden" });
      picture.append(this.marker);
      this.chart.replaceChildren(picture);
      this.drawNotes(left);
      const whole = this.view[0] <= 0 && this.view[1] >= this.length;
      for (const key of ["earlier", "later", "out", "whole"]) this.buttons[key].disabled = whole;
      if (this.picked) this.picked = this.blockOf(this.picked.items[0]) ?? this.picked;
      this.tell(this.picked);
    }

    x(at) {
      const [from, to] = this.view;
      return this.gutter + ((at - from) / (to - from)) * this.room;
    }

    drawRank(picture, rank, y) {
      const height = HEAD + rank.lanes.length * LANE;
      const shades = new Paths();
      for (const run of this.phases(rank.items)) {
        shades.add(`f-${run.phase}`, run.x, y, run.width, height);
        const word = run.width > run.phase.length * 7 + 8 ? run.phase : run.width > 14 ? run.phase[0].toUpperCase() : "";
        if (word) shades.after.push(svg("text", { x: run.x + 4, y: y + 12 }, word));
      }
      shades.into(picture);
      picture.append(svg("text", { x: 0, y: y + 12, class: "rank" }, rankName(rank.rank)));
      rank.lanes.forEach((lane, number) => {
        const top = y + HEAD + number * LANE;
        const label = svg("text", { x: 0, y: top + 12 }, short(lane.label, Math.floor((this.gutter - 8) / 6.4)));
        label.append(svg("title", {}, lane.label));
        const y1 = top + BAR + 1;
        picture.append(label, svg("line", { x1: this.gutter, x2: this.width, y1, y2: y1, class: "lane" }));
        const blocks = this.blocks(lane);
        const small = new Paths();
        // Blocks that stand for several may overlap: the worst lies on top, and is lower, so that both are seen.
        for (const block of [...blocks].sort((a, b) => badness(a) - badness(b))) this.drawBlock(picture, small, block, top);
        small.into(picture);
        this.drawn.push({ lane, top, blocks });
      });
    }

    // A phase is shaded from its first collective to the next phase's first: between them the data tells no border.
    phases(items) {
      const runs = [];
      for (const { sort, start } of items) {
        if (sort.phase !== runs.at(-1)?.phase) runs.push({ phase: sort.phase, start });
      }
      const shown = [];
      runs.forEach((run, number) => {
        const end = runs[number + 1]?.start ?? this.length;
        const x = Math.max(this.x(run.start), this.gutter), right = Math.min(this.x(end), this.width);
        const last = shown.at(-1);
        if (!PHASES.includes(run.phase) || right <= x) return;
        if (right - x < 1 && last && x - (last.x + last.width) < 1) last.width = right - last.x;
        else shown.push({ phase: run.phase, x, width: right - x });
      });
      return shown;
    }

    // What is drawn of a lane: a block a collective, or one for those too close to be told apart, shown as the worst.
    blocks(lane) {
      const found = [];
      for (const item of lane.items) {
        if (item.end < this.view[0] || item.start > this.view[1]) continue;
        const x = Math.max(this.x(item.start), this.gutter);
        const right = Math.min(Math.max(this.x(item.end), x + LEAST), this.width);
        const last = found.at(-1);
        if (last && right - x <= LEAST && last.right - last.x <= LEAST && x - last.x < LEAST) {
          last.items.push(item);
          last.number += item.number;
          if (WORST.indexOf(item.sort.state) > badness(last)) last.shown = item;
        } else found.push({ lane, x, right, items: [item], number: item.number, shown: item });
      }
      return found;
    }

    drawBlock(picture, small, block, top) {
      const { mechanism, state } = block.shown.sort;
      const width = Math.max(block.right - block.x, LEAST);
      const { y, height } = place(state, top);
      const look = `m-${mechanism} s-${state}`;
      // A pattern can't be seen in so little, and slows a browser down.
      if (width < 5) { small.add(`${look} solid`, block.x, y, width, height); return; }
      picture.append(svg("rect", {
        x: block.x, y, width: width - 0.5, height, rx: 1.5, class: look, fill: `url(#m-${mechanism})`,
      }));
      if (width < 16) return;
      const text = { x: block.x + width / 2, y: y + height / 2 + 3.5, class: `letter m-${mechanism}` };
      picture.append(svg("text", text, letters[mechanism][0]));
    }

    drawAxis(picture, bottom) {
      const [from, to] = this.view;
      const rough = (to - from) / Math.max(this.room / 75, 1), power = 10 ** Math.floor(Math.log10(rough));
      const step = Math.max(1, [1, 2, 5, 10].find((times) => times * power >= rough) * power);
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        const x = this.x(at);
        picture.prepend(svg("line", { x1: x, x2: x, y1: AXIS - 5, y2: bottom, class: "tick" }));
        const label = time(Math.round(at));
        if (x + 3 + label.length * 6.5 < this.width) picture.append(svg("text", { x: x + 3, y: 11 }, label));
      }
    }

    drawLegend() {
      const items = this.ranks.flatMap((rank) => rank.items);
      const sorts = [...new Set(items.map(({ sort }) => sort))];
      const entries = [];
      for (const mechanism of Object.keys(letters)) {
        for (const state of ["symmetric", "fallback", "ineligible", "unknown"]) {
          if (!sorts.some((sort) => sort.mechanism === mechanism && sort.state === state)) continue;
          const [letter, name] = letters[mechanism];
          const { y, height } = place(state, 0);
          const swatch = svg("svg", { class: "swatch", viewBox: `0 0 24 ${BAR}`, "aria-hidden": "true" });
          swatch.append(svg("rect", {
            y, width: 24, height, class: `m-${mechanism} s-${state}`, fill: `url(#m-${mechanism})`,
          }));
          entries.push(html("li", {}, swatch, `${letter}: ${name}${state === "symmetric" ? "" : `, ${STATES[state]}`}`));
        }
      }
      for (const phase of PHASES) {
        if (!sorts.some((sort) => sort.phase === phase)) continue;
        const swatch = svg("svg", { class: "swatch", "aria-hidden": "true" });
        swatch.append(svg("rect", { width: "100%", height: "100%", class: `f-${phase}` }));
        entries.push(html("li", {}, swatch, phase));
      }
      entries.push(html("li", {}, "(a phase is shaded from its first collective on)"));
      this.legend.replaceChildren(...entries);
    }

    drawNotes(left) {
      const blocks = this.drawn.flatMap((lane) => lane.blocks);
      const merged = blocks.filter((block) => block.number > 1);
      const notes = [...this.data.notes];
      if (merged.length) {
        const number = merged.reduce((sum, block) => sum + block.number, 0);
        notes.push(`${count(number, "collective")} too close to be told apart at this width are drawn as `
          + `${count(merged.length, "block")}, each as the worst in it; zoom in to see more.`);
      }
      this.notes.replaceChildren(...notes.map((note) => html("p", {}, html("small", {}, note))));
      if (!left) return;
      const button = html("button", { type: "button" }, `Show ${count(left, "more lane")}`);
      button.addEventListener("click", () => { this.all = true; this.draw(); this.chart.focus(); });
      this.notes.prepend(button);
    }

    at(event) {
      const box = this.chart.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const lane = this.drawn.find(({ top }) => y >= top - 2 && y < top + LANE - 2);
      if (!lane || x < this.gutter - 3) return null;
      // The worst lies on top; a small one may be missed by a few pixels.
      const hit = lane.blocks.filter((one) => x >= one.x && x <= one.right);
      const block = hit.sort((a, b) => badness(b) - badness(a))[0]
        ?? lane.blocks.find((one) => x >= one.x - 4 && x <= one.right + 4);
      return block ?? null;
    }

    blockOf(item) {
      for (const { blocks } of this.drawn) {
        for (const block of blocks) if (block.items.includes(item)) return block;
      }
      return null;
    }

    pick(block) {
      this.picked = block;
      this.tell(block);
    }

    tell(block) {
      const lane = block && this.drawn.find(({ blocks }) => blocks.includes(block));
      this.marker.setAttribute("visibility", lane ? "visible" : "hidden");
      if (lane) {
        const box = { x: block.x - 2, y: lane.top - 2, width: block.right - block.x + 4, height: BAR + 4 };
        for (const key in box) this.marker.setAttribute(key, box[key]);
      }
      if (!block || block === this.last) return;
      this.last = block;
      this.told.replaceChildren(...this.sentences(block).map(([text, kind]) => (
        kind === "b" ? html("p", {}, html("b", {}, text)) : html("p", kind ? { class: kind } : {}, text))));
    }

    sentences(block) {
      const { sort, start, end, number, rank } = block.shown;
      const said = [[`${sort.kind} in ${sort.phase} on ${rankName(rank)}: ${STATES[sort.state]}`, "b"]];
      if (block.number > 1) said.push([`The worst of ${block.number.toLocaleString("en")} that are drawn as one here.`]);
      said.push([`${sort.kernel} · ${sort.mechanism}`]);
      const group = sort.group === null ? "group unknown" : `group ${sort.group}`;
      const facts = [`${bytes(sort.bytes)} ${sort.dtype ?? ""}`.trim(), sort.size ? `${group} of ${sort.size} ranks` : group,
        `${time(end - start)}, ${time(start)} after the first`];
      if (sort.calls > 1) facts.push(`serves ${sort.calls} calls`);
      said.push([facts.join(" · ")]);
      if (number > 1) said.push([`Stands for ${count(number, "collective")} like this; kernel and size are the first's.`]);
      const cause = this.data.causes[GATE[sort.phase] ?? sort.phase];
      if (sort.state === "fallback" && cause) said.push([`Why: ${cause}`]);
      if (sort.why) said.push([sort.why, "hint"]);
      return said;
    }

    move(how) {
      const [from, to] = this.view, length = to - from;
      const middle = this.picked ? (this.picked.shown.start + this.picked.shown.end) / 2 : (from + to) / 2;
      if (how === "whole") this.look(0, this.length);
      else if (how === "in") this.look(middle - length / 4, middle + length / 4);
      else if (how === "out") this.look(middle - length, middle + length);
      else {
        const by = how === "later" ? length / 2 : -length / 2;
        this.look(from + by, to + by);
      }
    }

    look(from, to) {
      const length = Math.min(Math.max(to - from, 20), this.length);
      const start = Math.min(Math.max(from, 0), this.length - length);
      this.view = [start, start + length];
      this.draw();
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const moves = { "+": "in", "=": "in", "-": "out", 0: "whole" };
      const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (moves[event.key]) this.move(moves[event.key]);
      else if (way && event.shiftKey) this.move(way > 0 ? "later" : "earlier");
      else if (way) this.along(way);
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.across(event.key === "ArrowDown" ? 1 : -1);
      else if (event.key === "Home" || event.key === "End") this.ends(event.key === "Home");
      else return;
      event.preventDefault();
    }

    along(way) {
      const lane = this.drawn.find(({ blocks }) => blocks.includes(this.picked));
      if (!lane) { this.pick(this.drawn.find(({ blocks }) => blocks.length)?.blocks[0] ?? null); return; }
      const next = lane.blocks[lane.blocks.indexOf(this.picked) + way];
      if (next) { this.pick(next); return; }
      const { items } = lane.lane;
      const edge = way > 0 ? this.picked.items.at(-1) : this.picked.items[0];
      const item = items[items.indexOf(edge) + way];
      if (item) this.show(item);
    }

    across(way) {
      const at = this.drawn.findIndex(({ blocks }) => blocks.includes(this.picked));
      if (at < 0) { this.along(1); return; }
      const middle = (this.picked.x + this.picked.right) / 2;
      const away = (block) => Math.abs((block.x + block.right) / 2 - middle);
      for (let to = at + way; to >= 0 && to < this.drawn.length; to += way) {
        const { blocks } = this.drawn[to];
        if (blocks.length) { this.pick(blocks.reduce((a, b) => (away(b) < away(a) ? b : a))); return; }
      }
    }

    ends(first) {
      const lane = (this.drawn.find(({ blocks }) => blocks.includes(this.picked)) ?? this.drawn[0])?.lane;
      if (lane) this.show(lane.items.at(first ? 0 : -1));
    }

    // Pick an item that may lie outside the view.
    show(item) {
      if (!this.blockOf(item)) {
        const half = (this.view[1] - this.view[0]) / 2;
        this.look(item.start - half, item.start + half);
      }
      this.pick(this.blockOf(item));
    }
  }

  const made = new Map();
  const watcher = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const number = Number(target.dataset.timeline);
      if (!contentRect.width) continue;
      if (!made.has(target)) {
        const name = target.closest("tr").previousElementSibling.querySelector(".name").textContent;
        made.set(target, new Timeline(target, timelines[number], name));
      } else if (made.get(target).width !== made.get(target).chart.clientWidth) made.get(target).draw();
    }
  });
  for (const target of document.querySelectorAll("[data-timeline]")) watcher.observe(target);
})();
