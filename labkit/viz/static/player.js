// The memory player: a run over an address space, scrubbed in the page. No kernel, no network, no build step.
//
// A run is a table of records, one for each stretch of time in which a range of the space was owned in the same way:
// [offset, offset + size) x [start, end). Records are sorted by start, so the records born in a step are neighbours, and a second
// order sorted by end gives the records that die in it. Moving the clock applies those two slices, forwards or backwards;
// a long jump starts from the nearest keyframe. Cells hold exact integer sums of colour (256ths of a cell), so
// what was added is removed again to the last bit, and a cell over many small ranges shows their mean colour.

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];
const RUN_SECONDS = 20; // the whole run at speed 1
const NUM_KEYFRAMES = 32;

class Run {
  constructor(meta, buffer, base) {
    Object.assign(this, meta);
    const kinds = { f8: Float64Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };
    for (const [name, kind, at, length] of meta.columns) this[name] = new kinds[kind](buffer, base + at, length);
    const num = (this.num = this.start.length), steps = this.times.length;
    this.born = new Uint32Array(steps + 1); // born[s]: records with start < s; they are 0 .. born[s]
    this.died = new Uint32Array(steps + 1); // died[s]: records with end < s, in the order of `byEnd`
    for (let i = 0; i < num; i++) {
      this.born[this.start[i] + 1]++;
      if (this.end[i] < steps) this.died[this.end[i] + 1]++;
    }
    for (let s = 1; s <= steps; s++) { this.born[s] += this.born[s - 1]; this.died[s] += this.died[s - 1]; }
    this.byEnd = new Uint32Array(this.died[steps]);
    const next = this.died.slice();
    for (let i = 0; i < num; i++) if (this.end[i] < steps) this.byEnd[next[this.end[i]]++] = i;
    this.alive = new Uint8Array(num);
    this.step = -1;
    this.keyframes = [];
    const every = Math.max(1, Math.ceil(steps / NUM_KEYFRAMES));
    for (let s = 0; s < steps; s += every) {
      this.advance(s, null);
      const live = [];
      for (let i = 0; i < this.born[s + 1]; i++) if (this.alive[i]) live.push(i);
      this.keyframes.push({ step: s, live: Uint32Array.from(live) });
    }
  }

  // Records whose presence differs between now and `step`; paint(record, +1 or -1) hears of each.
  advance(step, paint) {
    const from = this.step, b0 = this.born[from + 1], b1 = this.born[step + 1], d0 = this.died[from + 1], d1 = this.died[step + 1];
    const { alive, byEnd } = this;
    const put = (i, on) => { alive[i] = on; if (paint) paint(i, on ? 1 : -1); };
    if (step >= from) {
      for (let i = b0; i < b1; i++) put(i, 1);
      for (let j = d0; j < d1; j++) put(byEnd[j], 0);
    } else {
      for (let j = d1; j < d0; j++) put(byEnd[j], 1);
      for (let i = b1; i < b0; i++) put(i, 0);
    }
    this.step = step;
  }

  // Go to `step` the cheaper way. True when everything was restarted from a keyframe (then paint heard nothing).
  seek(step, paint) {
    const changes = (s) => Math.abs(this.born[step + 1] - this.born[s + 1]) + Math.abs(this.died[step + 1] - this.died[s + 1]);
    let key = null;
    for (const k of this.keyframes) if (!key || changes(k.step) < changes(key.step)) key = k;
    if (this.step >= 0 && changes(this.step) <= key.live.length + changes(key.step)) { this.advance(step, paint); return false; }
    this.alive.fill(0);
    for (const i of key.live) this.alive[i] = 1;
    this.step = key.step;
    this.advance(step, null);
    return true;
  }

  // What lies at position x: a record's index, or the hole [from, to) around x.
  at(x) {
    const { alive, offset, size } = this;
    let from = 0, to = this.total, held = -1;
    for (let i = 0, n = this.born[this.step + 1]; i < n; i++) {
      if (!alive[i]) continue;
      const a = offset[i] * this.granule, b = a + size[i] * this.granule;
      if (this.nested && this.classes[this.cls[i]][0] === "free") { // a reserved range; what lies on top decides
        if (a <= x && x < b) { held = i; from = Math.max(from, a); to = Math.min(to, b); }
        continue;
      }
      if (a <= x && x < b) return { record: i };
      if (b <= x && b > from) from = b;
      if (a > x && a < to) to = a;
    }
    return { from, to, held };
  }
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const trim = (x) => Number(x.toFixed(2)).toString();

function amount(x, unit) {
  if (unit !== "bytes") return `${Math.round(x).toLocaleString("en")} ${Math.round(x) === 1 ? unit.replace(/s$/, "") : unit}`;
  for (const [scale, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (x >= scale) return `${trim(x / scale)} ${name}`;
  return `${x} B`;
}

function niceCeil(x, unit) {
  const scale = unit === "bytes" ? 2 ** (10 * Math.max(0, Math.min(3, Math.floor(Math.log2(Math.max(x, 1)) / 10)))) : 1;
  const v = x / scale, step = 10 ** Math.max(-1, Math.floor(Math.log10(Math.max(v, 1))) - 1);
  return Math.max(1, Math.ceil(Math.ceil(v / step - 1e-9) * step * scale - 1e-6));
}

// The canvas of one run: one cell a block, or rows of cells that each stand for many bytes.
class MemoryMap {
  constructor(run, height) {
    this.run = run; this.maxHeight = height;
    this.lo = 0; this.hi = run.total;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.context = this.canvas.getContext("2d");
    this.background = rgb(run.background[1]);
    const colors = run.classes.map(([, color]) => rgb(color)), free = run.classes.findIndex((c) => c[0] === "free");
    const under = run.nested ? colors[free] : this.background; // what a block lies on
    this.waste = colors.length;
    // what painting a class changes in a cell, three numbers a class; rounding waste comes last
    this.deltas = Int32Array.from([...colors, rgb(run.waste_color)].flatMap((color, c) => color.map((v, k) => v - (run.nested && c === free ? this.background : under)[k])));
    this.canvas.setAttribute("aria-label", `memory map of ${run.title}`);
    this.paint = this.paint.bind(this);
  }

  resize(width) {
    const { run } = this, units = this.hi - this.lo;
    let side = 1, cols, rows, rowUnits;
    if (run.unit !== "bytes" && units <= width * this.maxHeight) {
      for (side = 28; side > 1; side--) if (Math.ceil(units / Math.floor(width / side)) * side <= this.maxHeight) break;
      cols = Math.min(units, Math.floor(width / side)); rows = Math.ceil(units / cols); rowUnits = cols;
    } else {
      const wanted = Math.max(1, Math.min(40, Math.ceil(run.peak_records / 40)));
      rowUnits = niceCeil(units / wanted, run.unit); rows = Math.max(1, Math.ceil(units / rowUnits));
      cols = Math.floor(width); side = Math.max(6, Math.min(40, Math.floor(this.maxHeight / rows)));
    }
    Object.assign(this, { cols, rows, rowUnits, side, perUnit: (256 * cols) / rowUnits });
    this.canvas.width = cols; this.canvas.height = rows;
    this.canvas.style.width = `${run.unit === "bytes" ? cols : cols * side}px`;
    this.canvas.style.height = `${rows * side}px`;
    this.image = this.context.createImageData(cols, rows);
    this.pixels = new Uint32Array(this.image.data.buffer);
    for (const name of ["red", "green", "blue"]) this[name] = new Int32Array(cols * rows);
    this.repaint();
  }

  repaint() {
    [this.red, this.green, this.blue].forEach((sum, c) => sum.fill(this.background[c] * 256));
    const { alive } = this.run;
    for (let i = 0, n = this.run.born[this.run.step + 1]; i < n; i++) if (alive[i]) this.paint(i, 1);
  }

  paint(i, sign) {
    const { run } = this, g = run.granule, a = run.offset[i] * g, b = a + run.size[i] * g, slack = run.slack[i];
    this.fill(a, b - slack, run.cls[i], sign);
    if (slack) this.fill(b - slack, b, this.waste, sign);
  }

  // Put a class over what is under it (or take it off again) on [a, b). Ends are rounded to 256ths of a cell, so neighbours
  // share an end exactly.
  fill(a, b, cls, sign) {
    const top = 256 * this.red.length, { lo, perUnit, deltas, red, green, blue } = this;
    const from = Math.max(0, Math.min(top, Math.round((a - lo) * perUnit)));
    const to = Math.max(0, Math.min(top, Math.round((b - lo) * perUnit)));
    if (to <= from) return;
    const dr = sign * deltas[3 * cls], dg = sign * deltas[3 * cls + 1], db = sign * deltas[3 * cls + 2];
    const first = from >> 8, last = (to - 1) >> 8;
    for (let cell = first; cell <= last; cell++) {
      const weight = Math.min(to, (cell + 1) << 8) - Math.max(from, cell << 8);
      red[cell] += weight * dr; green[cell] += weight * dg; blue[cell] += weight * db;
    }
  }

  draw() {
    const { pixels, cols, rowUnits, lo, run, red, green, blue } = this;
    for (let i = 0; i < pixels.length; i++) pixels[i] = (255 << 24) | ((blue[i] >> 8) << 16) | ((green[i] >> 8) << 8) | (red[i] >> 8);
    const inside = Math.ceil(((run.total - lo) * cols) / rowUnits);
    if (inside < pixels.length) pixels.fill(0, Math.max(0, inside));
    this.context.putImageData(this.image, 0, 0);
  }

  move(step) { if (this.run.seek(step, this.paint)) this.repaint(); this.draw(); }

  zoom(factor, center) {
    const { run } = this, min = run.unit === "bytes" ? Math.min(run.total, 64 * run.granule) : Math.min(run.total, 16);
    const span = Math.max(min, Math.min(run.total, (this.hi - this.lo) * factor));
    this.look(center - (span * (center - this.lo)) / (this.hi - this.lo), span);
  }

  look(lo, span) {
    const { run } = this, round = run.unit === "bytes" ? run.granule : 1;
    this.lo = Math.max(0, Math.round(Math.min(lo, run.total - span) / round) * round);
    this.hi = Math.min(run.total, this.lo + Math.max(round, Math.round(span / round) * round));
  }

  position(col, row) { return this.lo + Math.floor(((row * this.cols + col + 0.5) * this.rowUnits) / this.cols); }
}

const SIGNS = { oom: "✕", move: "▶", eviction: "▼", preemption: "■", restart: "◆" };

const CSS = `
.lkp{font:13px/1.4 system-ui,sans-serif;color:#1b1b1b;background:#fff;border:1px solid #bbb;border-radius:4px;padding:8px;box-sizing:border-box;max-width:1100px;position:relative}
.lkp *{box-sizing:border-box}
.lkp .maps{display:flex;gap:14px;flex-wrap:wrap}.lkp .one{flex:1 1 300px;min-width:0}
.lkp .name{font-weight:600}.lkp .frame{display:flex;gap:4px}.lkp .rows{position:relative;width:66px;flex:none;font-size:11px;color:#444;text-align:right}
.lkp .rows span{position:absolute;right:0;white-space:nowrap;transform:translateY(-1px)}
.lkp canvas.map{display:block;image-rendering:pixelated;border:1px solid #777;cursor:crosshair;touch-action:none}
.lkp .axis{display:flex;justify-content:space-between;font-size:11px;color:#444;margin-left:70px}
.lkp .state{font-variant-numeric:tabular-nums;min-height:2.8em}
.lkp .strip{position:relative;height:76px;margin:6px 0 0;border:1px solid #999;cursor:ew-resize;touch-action:none;overflow:hidden}
.lkp .strip canvas{position:absolute;inset:0;width:100%;height:100%}.lkp .cursor{position:absolute;top:0;bottom:0;left:0;width:2px;margin-left:-1px;background:#000}
.lkp .bar{display:flex;gap:6px;align-items:center;flex-wrap:wrap;margin-top:6px}
.lkp button,.lkp select{font:inherit;padding:2px 8px;min-height:28px;color:#1b1b1b;background:#f5f5f5;border:1px solid #888;border-radius:3px}
.lkp button:focus-visible,.lkp select:focus-visible,.lkp input:focus-visible,.lkp canvas:focus-visible{outline:2px solid #0072B2;outline-offset:1px}
.lkp input[type=range]{flex:1 1 240px;min-width:160px}.lkp select.events{max-width:13em}
.lkp .legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px;margin-top:6px}.lkp .legend i{display:inline-block;width:12px;height:12px;border:1px solid #666;vertical-align:-2px;margin-right:4px}
.lkp .tip{position:absolute;z-index:5;pointer-events:none;background:#fff;border:1px solid #333;border-radius:3px;padding:4px 8px;white-space:pre;font-size:12px;box-shadow:0 1px 4px #0004}
.lkp .help{font-size:11px;color:#555;margin-top:4px}`;

function element(tag, parent, attributes = {}, text = "") {
  const node = parent.appendChild(document.createElement(tag));
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

async function decode(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  const buffer = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true), base = 8 * Math.ceil((4 + length) / 8);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return { ...header, runs: header.runs.map((meta) => new Run(meta, buffer, base)) };
}

class Player {
  constructor(root, data, firstStep) {
    Object.assign(this, data);
    this.root = root;
    this.clock = Float64Array.from(new Set(this.runs.flatMap((run) => [...run.times]))).sort();
    this.stepOf = this.runs.map((run) => {
      let s = 0;
      return Int32Array.from(this.clock, (t) => { while (s + 1 < run.times.length && run.times[s + 1] <= t) s++; return s; });
    });
    this.events = this.runs.flatMap((run, r) => run.events.map(([step, kind, text]) => ({ r, kind, text, time: run.times[step] })));
    this.events.sort((a, b) => a.time - b.time);
    for (const event of this.events) event.at = this.clock.indexOf(event.time);
    this.maps = this.runs.map((run) => new MemoryMap(run, this.height));
    this.now = Math.max(0, Math.min(this.clock.length - 1, firstStep));
    this.speed = 1; this.timer = 0; this.pending = 0; this.handlerMs = 0;
    this.build();
    this.runs.forEach((run, r) => run.seek(this.stepOf[r][this.now], null));
    this.width = 0;
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(root);
    this.layout();
  }

  build() {
    const { root } = this;
    root.className = "lkp";
    root.tabIndex = 0;
    root.dataset.lmSuppressShortcuts = "true"; // JupyterLab's own arrow keys stay away
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", `Memory player: ${this.title || this.runs.map((run) => run.title).join(" and ")}`);
    element("style", root, {}, CSS);
    if (this.title) element("div", root, { class: "name" }, this.title);
    const maps = element("div", root, { class: "maps" });
    this.views = this.runs.map((run, r) => {
      const one = element("div", maps, { class: "one" });
      element("div", one, { class: "name" }, run.title);
      const frame = element("div", one, { class: "frame" }), rows = element("div", frame, { class: "rows", "aria-hidden": "true" });
      const canvas = frame.appendChild(this.maps[r].canvas);
      canvas.className = "map";
      const view = { one, rows, axis: element("div", one, { class: "axis", "aria-hidden": "true" }), state: element("div", one, { class: "state" }) };
      this.watch(canvas, r);
      return view;
    });
    this.strip = element("div", root, { class: "strip", title: "used (filled) and largest free range (line) over time; drag to move the clock" });
    this.curve = element("canvas", this.strip);
    this.cursor = element("div", this.strip, { class: "cursor" });
    this.scrub(this.strip);
    const bar = element("div", root, { class: "bar" });
    const button = (text, label, act) => {
      const node = element("button", bar, { type: "button", title: label, "aria-label": label }, text);
      node.addEventListener("click", () => act());
      return node;
    };
    button("◀", "One step back (left arrow)", () => this.go(this.now - 1));
    this.playButton = button("Play", "Play or pause (space)", () => this.toggle());
    button("▶", "One step on (right arrow)", () => this.go(this.now + 1));
    this.slider = element("input", bar, { type: "range", min: 0, max: this.clock.length - 1, step: 1, "aria-label": "Time" });
    this.slider.addEventListener("input", (e) => this.timed(e, () => this.go(+this.slider.value)));
    this.speedSelect = element("select", bar, { "aria-label": "Speed" });
    for (const s of SPEEDS) element("option", this.speedSelect, { value: s }, `${s}×`);
    this.speedSelect.value = 1;
    this.speedSelect.addEventListener("change", () => (this.speed = +this.speedSelect.value));
    if (this.events.length) {
      button("⇤", "Event before ( [ )", () => this.jump(-1));
      button("⇥", "Next event ( ] )", () => this.jump(1));
      this.select = element("select", bar, { "aria-label": "Jump to event", class: "events" });
      element("option", this.select, { value: "" }, `${this.events.length} event${this.events.length > 1 ? "s" : ""}`);
      this.events.slice(0, 500).forEach((event, i) => element("option", this.select, { value: i }, this.eventText(event)));
      this.select.addEventListener("change", () => { if (this.select.value) this.go(this.events[+this.select.value].at); });
    }
    button("−", "Zoom out ( - )", () => this.zoom(2));
    button("+", "Zoom in ( + )", () => this.zoom(0.5));
    button("All", "Show everything ( 0 )", () => this.zoom(Infinity));
    const legend = element("div", root, { class: "legend" }), seen = new Set();
    for (const run of this.runs) for (const [label, color, text] of [...run.classes.filter((c) => c[3]), run.background, ...(run.has_waste ? [["rounding waste", run.waste_color, "rounding waste"]] : [])]) {
      if (seen.has(label)) continue;
      seen.add(label);
      element("i", element("span", legend, {}, ` ${text}`), { style: `background:${color}` });
    }
    for (const span of legend.children) span.prepend(span.querySelector("i"));
    element("div", root, { class: "help" }, "Keys: ← → step, with Shift ten steps, Home, End, space play, [ ] events, + − 0 zoom. With the map focused, arrow keys move the pointer. Ctrl + wheel zooms, dragging a zoomed map pans.");
    this.tip = element("div", root, { class: "tip", hidden: "", role: "status" });
    root.addEventListener("keydown", (e) => this.timed(e, () => this.key(e)));
  }

  eventText(event) {
    return `${SIGNS[event.kind] || "●"} ${event.kind} at ${this.time(event.time)}${this.runs.length > 1 ? ` (${this.runs[event.r].title})` : ""}${event.text ? `: ${event.text}` : ""}`;
  }

  time(t) { return this.time_unit === "step" ? `step ${trim(t)}` : `${trim(t)} ${this.time_unit}`; }

  timed(e, act) { const began = performance.now(); act(); this.handlerMs += performance.now() - began; }

  layout() {
    const width = Math.max(240, (this.views[0].one.clientWidth || 900) - 76);
    if (width === this.width) return;
    this.width = width;
    this.reshape();
  }

  reshape() {
    this.maps.forEach((map, r) => { map.resize(this.width); this.labels(map, this.views[r]); });
    this.drawCurve();
    this.draw();
  }

  labels(map, view) {
    const every = Math.max(1, Math.ceil(14 / map.side)), { unit } = map.run;
    const step = Math.max(every, Math.ceil(map.rows / 12));
    view.rows.replaceChildren();
    for (let row = 0; row < map.rows; row += step) element("span", view.rows, { style: `top:${row * map.side}px` }, unit === "bytes" ? amount(map.lo + row * map.rowUnits, unit) : (map.lo + row * map.rowUnits).toLocaleString("en"));
    view.axis.replaceChildren();
    element("span", view.axis, {}, `${map.rows > 1 ? "each row " : ""}${amount(map.rowUnits, unit)}`);
    element("span", view.axis, {}, map.hi - map.lo < map.run.total ? `zoomed: ${amount(map.lo, unit)} to ${amount(map.hi, unit)} of ${amount(map.run.total, unit)}` : `whole space: ${amount(map.run.total, unit)}`);
  }

  // The clock moves: remember the newest step, draw once in the next animation frame.
  go(step) {
    step = Math.max(0, Math.min(this.clock.length - 1, Math.round(step)));
    if (step === this.now) return;
    this.now = step;
    if (!this.pending) this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  draw() {
    const began = performance.now(), t = this.clock[this.now], share = this.clock.length > 1 ? this.now / (this.clock.length - 1) : 0;
    this.maps.forEach((map, r) => {
      const { run } = map, step = this.stepOf[r][this.now], unit = run.unit;
      map.move(step);
      this.views[r].state.textContent = `${this.time(t)}: used ${amount(run.used[step], unit)} of ${amount(run.total, unit)} (${((100 * run.used[step]) / run.total).toFixed(1)} %), free ${amount(run.free[step], unit)}, largest free range ${amount(run.largest_free[step], unit)}`;
    });
    this.slider.value = this.now;
    this.slider.setAttribute("aria-valuetext", this.time(t));
    this.cursor.style.left = `${100 * share}%`;
    if (this.pointer) this.inspect();
    const workMs = this.handlerMs + performance.now() - began;
    this.handlerMs = 0;
    this.root.dispatchEvent(new CustomEvent("labkit:drawn", { detail: { step: this.now, workMs } }));
  }

  drawCurve() {
    const width = (this.curve.width = Math.max(1, this.strip.clientWidth || 900)), height = (this.curve.height = 76), c = this.curve.getContext("2d");
    const last = Math.max(1, this.clock.length - 1);
    c.clearRect(0, 0, width, height);
    this.runs.forEach((run, r) => {
      const top = (r * (height - 12)) / this.runs.length + 12, tall = (height - 12) / this.runs.length - 2;
      const y = (v) => top + tall * (1 - v / run.total), path = (column) => { for (let x = 0; x <= width; x++) c.lineTo(x, y(column[this.stepOf[r][Math.round((x * last) / width)] ?? 0])); };
      c.fillStyle = "#9ecae1"; c.beginPath(); c.moveTo(0, top + tall); path(run.used); c.lineTo(width, top + tall); c.fill();
      c.strokeStyle = "#000"; c.lineWidth = 1.2; c.setLineDash([4, 2]); c.beginPath(); path(run.largest_free); c.stroke(); c.setLineDash([]);
      c.strokeStyle = "#bbb"; c.strokeRect(0.5, top - 0.5, width - 1, tall + 1);
      c.fillStyle = "#222"; c.font = "11px system-ui,sans-serif";
      if (r === 0) c.fillText("used (filled) and largest free range (dashed), share of the space, over time", 4, 10);
    });
    c.font = "12px system-ui,sans-serif"; c.textAlign = "center";
    let lastX = -99;
    for (const event of this.events) {
      const x = (event.at * width) / last, top = (event.r * (height - 12)) / this.runs.length + 12;
      if (x - lastX < 1 && this.events.length > 200) continue;
      lastX = x;
      c.fillStyle = this.event_colors[event.kind] || "#555"; c.fillRect(x - 0.5, top, 1, (height - 12) / this.runs.length - 2);
      c.fillText(SIGNS[event.kind] || "●", Math.max(6, Math.min(width - 6, x)), top + 12);
    }
  }

  scrub(strip) {
    const to = (e) => { const box = strip.getBoundingClientRect(); this.go(((e.clientX - box.left) / box.width) * (this.clock.length - 1)); };
    strip.addEventListener("pointerdown", (e) => { strip.setPointerCapture(e.pointerId); this.timed(e, () => to(e)); });
    strip.addEventListener("pointermove", (e) => { if (e.buttons & 1) this.timed(e, () => to(e)); });
  }

  watch(canvas, r) {
    const cell = (e) => { const box = canvas.getBoundingClientRect(), map = this.maps[r]; return [Math.min(map.cols - 1, Math.max(0, Math.floor(((e.clientX - box.left) / box.width) * map.cols))), Math.min(map.rows - 1, Math.max(0, Math.floor(((e.clientY - box.top) / box.height) * map.rows)))]; };
    let held = null;
    canvas.addEventListener("pointermove", (e) => this.timed(e, () => {
      const [col, row] = cell(e), map = this.maps[r];
      if (held && e.buttons & 1) {
        const moved = (held.y - row) * map.rowUnits + ((held.x - col) * map.rowUnits) / map.cols;
        map.look(held.lo + moved, map.hi - map.lo); this.reshape();
      }
      this.pointer = { r, col, row }; this.inspect();
    }));
    canvas.addEventListener("pointerdown", (e) => { const [x, y] = cell(e); canvas.setPointerCapture(e.pointerId); held = { x, y, lo: this.maps[r].lo }; });
    canvas.addEventListener("pointerup", () => (held = null));
    for (const leave of ["pointerleave", "blur"]) canvas.addEventListener(leave, () => { this.pointer = null; this.tip.hidden = true; });
    canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      const [col, row] = cell(e), map = this.maps[r];
      map.zoom(e.deltaY < 0 ? 0.5 : 2, map.position(col, row)); this.reshape();
    }, { passive: false });
  }

  inspect() {
    const { r, col, row } = this.pointer, map = this.maps[r], { run } = map, x = map.position(col, row), { unit } = run;
    if (x >= run.total) { this.tip.hidden = true; return; }
    const found = run.at(x), i = found.record;
    const lines = i === undefined
      ? [`${found.held >= 0 ? "free" : run.background[2]}: ${amount(found.to - found.from, unit)}`, `from ${amount(found.from, unit)} to ${amount(found.to, unit)}`]
      : [`owner: ${run.owners[run.owner[i]] || "none"}`, `lifetime: ${run.classes[run.cls[i]][2]}`, `size: ${amount(run.size[i] * run.granule, unit)}${run.slack[i] ? `, asked ${amount(run.size[i] * run.granule - run.slack[i], unit)}` : ""}`,
        `at: ${amount(run.offset[i] * run.granule, unit)}`, `age: ${this.time_unit === "step" ? `${trim(this.clock[this.now] - run.times[run.since[i]])} steps` : this.time(this.clock[this.now] - run.times[run.since[i]])}`, `references: ${run.refs[i]}`];
    this.tip.textContent = lines.join("\n");
    this.tip.hidden = false;
    const canvas = map.canvas.getBoundingClientRect(), box = this.root.getBoundingClientRect();
    const left = canvas.left - box.left + ((col + 1) * canvas.width) / map.cols + 10, top = canvas.top - box.top + ((row + 1) * canvas.height) / map.rows + 8;
    this.tip.style.left = `${Math.max(0, Math.min(left, box.width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${top}px`;
  }

  zoom(factor) {
    for (const map of this.maps) {
      const center = this.pointer ? this.maps[this.pointer.r].position(this.pointer.col, this.pointer.row) : (map.lo + map.hi) / 2;
      map.zoom(factor, Math.max(map.lo, Math.min(map.hi, center)));
    }
    this.reshape();
  }

  jump(direction) {
    const ahead = this.events.filter((event) => direction * (event.at - this.now) > 0);
    if (ahead.length) { const event = direction > 0 ? ahead[0] : ahead[ahead.length - 1]; this.go(event.at); this.select.value = this.events.indexOf(event) < 500 ? this.events.indexOf(event) : ""; }
  }

  toggle() {
    if (this.timer) { cancelAnimationFrame(this.timer); this.timer = 0; this.playButton.textContent = "Play"; return; }
    if (this.now === this.clock.length - 1) { this.now = 0; this.draw(); }
    this.playButton.textContent = "Pause";
    let before = 0, exact = this.now; // a frame's own clock may lag behind performance.now()
    const tick = (now) => {
      exact += (((before ? now - before : 0) / 1000) * this.speed * (this.clock.length - 1)) / RUN_SECONDS;
      before = now;
      const step = Math.min(this.clock.length - 1, Math.floor(exact));
      if (step !== this.now) { this.now = step; this.draw(); }
      if (step === this.clock.length - 1 || !this.root.isConnected) { this.timer = 0; this.playButton.textContent = "Play"; return; }
      this.timer = requestAnimationFrame(tick);
    };
    this.timer = requestAnimationFrame(tick);
  }

  key(e) {
    if (e.altKey || e.ctrlKey || e.metaKey || e.target.tagName === "SELECT") return;
    const by = e.shiftKey ? 10 : 1, index = this.maps.findIndex((map) => map.canvas === e.target), arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const acts = {
      ArrowLeft: () => this.go(this.now - by), ArrowRight: () => this.go(this.now + by), ArrowDown: () => this.go(this.now - by), ArrowUp: () => this.go(this.now + by),
      PageUp: () => this.go(this.now + 10), PageDown: () => this.go(this.now - 10), Home: () => this.go(0), End: () => this.go(this.clock.length - 1),
      "[": () => this.jump(-1), "]": () => this.jump(1), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.zoom(Infinity),
    };
    if (e.key === " " && e.target.tagName !== "BUTTON") acts[" "] = () => this.toggle();
    let act = acts[e.key];
    if (index >= 0 && arrows[e.key]) {
      act = () => {
        const map = this.maps[index], p = this.pointer && this.pointer.r === index ? this.pointer : { r: index, col: 0, row: 0 }, [dx, dy] = arrows[e.key];
        this.pointer = { r: index, col: Math.max(0, Math.min(map.cols - 1, p.col + by * dx)), row: Math.max(0, Math.min(map.rows - 1, p.row + by * dy)) };
        this.inspect();
      };
    }
    if (act) { e.preventDefault(); e.stopPropagation(); act(); }
  }

  close() { this.observer.disconnect(); cancelAnimationFrame(this.timer); cancelAnimationFrame(this.pending); }
}

async function render({ model, el }) {
  const root = element("div", el);
  try {
    const player = new Player(root, await decode(model.get("data")), model.get("first_step") || 0);
    root.labkitPlayer = player;
    root.dataset.ready = "true";
    return () => player.close();
  } catch (error) {
    root.textContent = `The player could not start (${error}); the static picture beside it shows the same run.`;
  }
}

export default { render };
