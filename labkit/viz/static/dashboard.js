// A picture with one clock, and a player below it on the same clock. Follows player.js in one module (dashboard.py).
// info: {times, readouts: [[name, [text per time]]], left, right (shares of the picture's width), start, end}

class Dashboard {
  constructor(root, picture, info, player) {
    Object.assign(this, { root, info, player });
    root.classList.add("lkd");
    element("style", root, {}, ".lkd .frame{position:relative;max-width:100%}.lkd img{width:100%;display:block}.lkd .line{position:absolute;top:0;bottom:0;width:0;border-left:1.5px solid #000;pointer-events:none}.lkd .now{font:13px system-ui,sans-serif;margin:2px 0 8px}.lkd input{width:100%}");
    this.frame = element("div", root, { class: "frame" });
    const image = element("img", this.frame, { alt: "the five groups of metrics over time", src: picture });
    this.line = element("div", this.frame, { class: "line" });
    this.slider = element("input", root, { type: "range", min: 0, max: info.times.length - 1, step: 1, "aria-label": "Time" });
    this.text = element("div", root, { class: "now", role: "status" });
    this.slider.addEventListener("input", () => this.go(+this.slider.value));
    const at = (e) => {
      const box = image.getBoundingClientRect(), share = ((e.clientX - box.left) / box.width - info.left) / (info.right - info.left);
      this.seek(info.start + Math.max(0, Math.min(1, share)) * (info.end - info.start));
    };
    image.addEventListener("pointerdown", (e) => { e.preventDefault(); image.setPointerCapture(e.pointerId); at(e); });
    image.addEventListener("pointermove", (e) => { if (e.buttons & 1) at(e); });
    if (player) {
      root.append(player.root);
      player.root.addEventListener("labkit:drawn", () => { if (!this.leading) this.show(player.clock[player.now]); });
    }
    this.seek(info.opens);
  }

  // the last row that is not after `time`
  row(clock, time) { let lo = 0, hi = clock.length - 1; while (lo < hi) { const mid = (lo + hi + 1) >> 1; if (clock[mid] <= time) lo = mid; else hi = mid - 1; } return lo; }

  go(row) { this.seek(this.info.times[row]); }

  // the reader moved this clock: the player follows
  seek(time) {
    this.show(time);
    if (!this.player) return;
    this.leading = true;
    this.player.go(this.row(this.player.clock, time));
    requestAnimationFrame(() => requestAnimationFrame(() => (this.leading = false)));
  }

  show(time) {
    const { info } = this, row = this.row(info.times, time);
    this.time = time;
    this.slider.value = row;
    this.slider.setAttribute("aria-valuetext", `${time.toPrecision(4)} s`);
    this.line.style.left = `${100 * (info.left + ((info.right - info.left) * (time - info.start)) / Math.max(1e-9, info.end - info.start))}%`;
    this.text.textContent = `${time.toPrecision(4)} s: ` + info.readouts.map(([name, values]) => `${name} ${values[row]}`).join(", ");
  }
}

async function renderDashboard({ model, el }) {
  const root = element("div", el);
  try {
    const info = JSON.parse(model.get("info")), data = model.get("data");
    let player = null;
    if (data.byteLength) player = new Player(element("div", root), await decode(data), model.get("first_step") || 0);
    root.labkitDashboard = new Dashboard(root, model.get("picture"), info, player);
    root.dataset.ready = "true";
    return () => player?.close();
  } catch (error) {
    root.textContent = `The dashboard could not start (${error}); the static picture beside it shows the same run.`;
  }
}

export default { render: renderDashboard };
