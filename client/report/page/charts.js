"use strict";
// Charts that share one horizontal range: lines, stacked areas, the timeline of recipes and a heat map. Points are two arrays,
// x ascending; a null is a gap. Text from data is set as text, never as markup.
const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const TOP = 10, BOTTOM = 24, RIGHT = 14;
  const left = (width) => (width < 480 ? 52 : 58);

  function el(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "class") node.className = value;
      else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value);
    }
    for (const child of children) if (child !== null && child !== undefined) node.append(child);
    return node;
  }
  function svg(name, attributes, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // ---- Numbers ------------------------------------------------------------------------------

  const MINUS = "\u2212";
  const signed = (text) => text.replace("-", MINUS);
  // 1234567 is "1.23M"; `digits` significant ones.
  function si(value, digits = 3) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= unit * 0.99995) return signed(String(Number((value / unit).toPrecision(digits)))) + name;
    }
    return signed(String(Number(value.toPrecision(digits))));
  }
  function plain(value, digits = 4) {
    if (value === null || value === undefined) return "not finite";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return signed(value.toExponential(Math.max(0, digits - 2)));
    return signed(String(Number(value.toPrecision(digits))));
  }
  const whole = (value) => Math.round(value).toLocaleString("en").replace(/,/g, "\u2009");
  function percent(fraction, digits = 2) {
    if (fraction === 0) return "0 %";
    return plain(fraction * 100, digits) + " %";
  }
  function seconds(value) {
    if (value === null) return "not finite";
    if (value === 0) return "0 s";
    if (value < 1e-3) return plain(value * 1e6, 3) + " µs";
    if (value < 1) return plain(value * 1e3, 3) + " ms";
    return plain(value, 3) + " s";
  }

  // About `count` round values of [low, high].
  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(1, count);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
      found.push(Number((i * step).toPrecision(12)));
    }
    return found;
  }
  function logTicks(low, high, count) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of [1, 2, 5]) {
        const value = Number((factor * Math.pow(10, power)).toPrecision(3));
        if (value >= low && value <= high) found.push(value);
      }
    }
    const tens = found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9);
    if (found.length > count * 2 && tens.length >= 2) {
      const every = Math.ceil(tens.length / count);
      return tens.filter((_, i) => i % every === 0);
    }
    return found.length >= 2 ? found : ticks(low, high, count);
  }

  // The first index whose value is not below `value`.
  function lowerBound(values, value) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  }
  function nearest(values, value) {
    const at = lowerBound(values, value);
    if (at === 0) return 0;
    if (at === values.length) return at - 1;
    return value - values[at - 1] <= values[at] - value ? at - 1 : at;
  }
  // The value at x of the line through the points; beyond them the first or last slope continues.
  function along(xs, ys, x) {
    if (xs.length < 2) return xs.length === 1 ? ys[0] : x;
    const at = Math.min(Math.max(lowerBound(xs, x), 1), xs.length - 1);
    const slope = (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1]);
    return ys[at - 1] + (x - xs[at - 1]) * slope;
  }

  // ---- The shared range ---------------------------------------------------------------------

  const view = { axis: "steps", full: { steps: [0, 1], tokens: [0, 1] }, range: [0, 1], cursor: null };
  const drawn = [];
  const listeners = [];
  let pending = false;
  let late = [];  // charts outside of the window, which are drawn when the browser is idle
  // Milliseconds since the page was opened: when the charts in the window were first drawn, and all of them.
  const times = { first: null, all: null };
  let finished = null;
  const allDrawn = new Promise((done) => { finished = done; });
  const idle = window.requestIdleCallback ? (run) => requestIdleCallback(run, { timeout: 300 }) : (run) => setTimeout(run, 0);
  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      // All sizes are read before anything is written, so that the page is laid out once.
      const near = new Set(drawn.filter((chart) => chart.measure()));
      const waiting = late.length > 0;
      late = drawn.filter((chart) => !near.has(chart));
      for (const chart of near) chart.draw();
      for (const listener of listeners) listener();
      if (times.first === null) times.first = performance.now();
      if (!waiting) idle(drawLate);
    });
  }
  function drawLate() {
    const chart = late.shift();
    if (chart) chart.draw();
    if (late.length > 0) return idle(drawLate);
    if (times.all === null) times.all = performance.now();
    finished(true);
  }
  function drawAll() {
    while (late.length > 0) drawLate();
  }
  window.addEventListener("beforeprint", drawAll);
  // Who scrolls fast is ahead of the idle browser.
  window.addEventListener("scroll", () => { if (late.length > 0) redraw(); }, { passive: true });
  function setRange(low, high) {
    const [first, last] = view.full[view.axis];
    const least = Math.max((last - first) / 20000, Number.EPSILON);
    if (high - low < least) {
      const middle = (low + high) / 2;
      low = middle - least / 2;
      high = middle + least / 2;
    }
    const width = Math.min(high - low, last - first);
    low = Math.min(Math.max(low, first), last - width);
    view.range = [low, low + width];
    redraw();
  }
  function zoom(factor, center) {
    const [low, high] = view.range;
    const at = center === undefined ? (low + high) / 2 : center;
    setRange(at - (at - low) * factor, at + (high - at) * factor);
  }
  function pan(share) {
    const [low, high] = view.range;
    setRange(low + (high - low) * share, high + (high - low) * share);
  }
  const reset = () => setRange(...view.full[view.axis]);
  const zoomed = () => view.range[0] > view.full[view.axis][0] || view.range[1] < view.full[view.axis][1];
  function setCursor(x) {
    view.cursor = x;
    for (const chart of drawn) chart.moveCursor();
  }

  // Dragging selects a range, two fingers stretch it, the wheel with Ctrl zooms; hovering and touching show the values.
  function interact(host, surface, chart) {
    const pointers = new Map();
    let from = null, brush = null, stretched = null;
    const xOf = (event) => {
      const box = host.getBoundingClientRect();
      return Math.min(Math.max(event.clientX - box.left, chart.l), chart.r);
    };
    const value = (px) => view.range[0] + (px - chart.l) / (chart.r - chart.l) * (view.range[1] - view.range[0]);
    function dropBrush() {
      if (brush) brush.remove();
      brush = null;
      from = null;
    }
    surface.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, xOf(event));
      if (event.pointerType !== "mouse") chart.hover(event, xOf(event));
      if (pointers.size === 2) {
        dropBrush();
        stretched = [...pointers.values()].map(value);
      } else if (event.pointerType === "mouse" && event.button === 0) {
        from = xOf(event);
        surface.setPointerCapture(event.pointerId);
      }
    });
    surface.addEventListener("pointermove", (event) => {
      const px = xOf(event);
      if (pointers.has(event.pointerId)) pointers.set(event.pointerId, px);
      if (stretched && pointers.size === 2) {
        const [a, b] = [...pointers.values()];
        if (Math.abs(a - b) > 12) {
          const scale = (stretched[1] - stretched[0]) / (b - a);
          const low = stretched[0] - (a - chart.l) * scale;
          if (scale > 0) setRange(low, low + (chart.r - chart.l) * scale);
        }
        return;
      }
      if (from !== null && Math.abs(px - from) > 3) {
        if (!brush && chart.svg) brush = chart.svg.appendChild(svg("rect", { class: "brush", y: 0, height: chart.height }));
        if (brush) {
          brush.setAttribute("x", Math.min(px, from));
          brush.setAttribute("width", Math.abs(px - from));
        }
      }
      setCursor(value(px));
      chart.hover(event, px);
    });
    function release(event) {
      pointers.delete(event.pointerId);
      stretched = null;
      if (from === null) return;
      const px = xOf(event), begin = from;
      dropBrush();
      if (event.type === "pointerup" && Math.abs(px - begin) > 6) {
        setRange(value(Math.min(px, begin)), value(Math.max(px, begin)));
      }
    }
    surface.addEventListener("pointerup", release);
    surface.addEventListener("pointercancel", release);
    surface.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "mouse") return;
      setCursor(null);
      chart.leave();
    });
    surface.addEventListener("dblclick", reset);
    surface.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(Math.min(Math.max(event.deltaY, -60), 60) * 0.006), value(xOf(event)));
    }, { passive: false });
  }

  // What charts have in common: size, cursor line and tooltip.
  class Base {
    constructor(host, height) {
      this.host = host;
      this.height = height;
      host.classList.add("chart");
      this.tip = el("div", { class: "tip", hidden: "" });
      this.surface = el("div");
      host.append(this.surface, this.tip);
      drawn.push(this);
      interact(host, this.surface, this);
      this.surface.style.minHeight = this.height + "px";
      if (window.ResizeObserver) {
        new ResizeObserver(([entry]) => { if (this.width !== undefined && this.width !== this.widthOf(entry.contentRect.width)) redraw(); }).observe(host);
      }
    }
    widthOf(width) {
      return Math.max(Math.round(width), 120);
    }
    // Returns whether the chart is in the window, or less than a quarter of it away.
    measure() {
      const box = this.host.getBoundingClientRect();
      this.width = this.widthOf(box.width);
      this.l = left(this.width);
      this.r = this.width - RIGHT;
      return box.bottom > -0.25 * innerHeight && box.top < 1.25 * innerHeight;
    }
    // Pixels.
    perUnit() {
      return (this.r - this.l) / (view.range[1] - view.range[0]);
    }
    px(x) {
      return this.l + (x - view.range[0]) / (view.range[1] - view.range[0]) * (this.r - this.l);
    }
    begin() {
      this.svg = svg("svg", { width: this.width, height: this.height, viewBox: `0 0 ${this.width} ${this.height}`, role: "img", "aria-label": this.label || "" });
      const clip = svg("clipPath", { id: this.clipId() });
      const top = this.clipTop || 0;
      // Signs at the ends of the range are whole.
      const pad = this.clipPad || 0;
      clip.append(svg("rect", { x: this.l - pad, y: top, width: Math.max(0, this.r - this.l + 2 * pad), height: this.height - top - (this.bottom || 0) }));
      const defs = svg("defs");
      defs.append(clip);
      this.svg.append(defs);
      this.cursor = svg("line", { class: "cursor", y1: 0, y2: this.height - (this.bottom || 0), visibility: "hidden" });
    }
    end() {
      this.svg.append(this.cursor);
      this.surface.replaceChildren(this.svg);
      this.moveCursor();
    }
    clipId() {
      return "clip" + drawn.indexOf(this);
    }
    xAxis(y) {
      const count = Math.max(2, Math.floor((this.r - this.l) / 90));
      for (const x of ticks(view.range[0], view.range[1], count)) {
        if (view.axis === "steps" && x !== Math.round(x)) continue;
        const at = this.px(x);
        this.svg.append(svg("line", { class: "grid", x1: at, x2: at, y1: TOP, y2: y }));
        this.svg.append(svg("text", { x: at, y: y + 16, "text-anchor": at > this.r - 12 ? "end" : at < this.l + 4 ? "start" : "middle" }, si(x, 4)));
      }
    }
    moveCursor() {
      if (!this.cursor) return;
      const x = view.cursor;
      const shown = x !== null && x >= view.range[0] && x <= view.range[1];
      this.cursor.setAttribute("visibility", shown ? "visible" : "hidden");
      if (shown) {
        this.cursor.setAttribute("x1", this.px(x));
        this.cursor.setAttribute("x2", this.px(x));
      }
    }
    showTip(px, y, ...children) {
      this.tip.replaceChildren(...children);
      this.tip.hidden = false;
      const width = this.tip.offsetWidth;
      const right = px + 14 + width <= this.width;
      this.tip.style.left = Math.max(0, right ? px + 14 : Math.max(0, px - 14 - width)) + "px";
      this.tip.style.top = y + "px";
    }
    leave() {
      this.tip.hidden = true;
    }
    hover() {}
  }

  // The indices of [first, last) that a line needs at `dx` pixels per unit: the lowest and the highest of each pixel, and gaps.
  function perPixel(xs, ys, first, last, dx) {
    const kept = [];
    if (last - first <= 2 || last - first < 2 * (xs[last - 1] - xs[first]) * dx) {
      for (let i = first; i < last; i++) kept.push(i);
      return kept;
    }
    for (let i = first; i < last;) {
      const end = xs[i] + 1 / dx;
      let low = -1, high = -1, gap = -1;
      for (; i < last && xs[i] < end; i++) {
        if (ys[i] === null) { gap = i; continue; }
        if (low < 0 || ys[i] < ys[low]) low = i;
        if (high < 0 || ys[i] > ys[high]) high = i;
      }
      kept.push(...[...new Set([low, high, gap])].filter((index) => index >= 0).sort((a, b) => a - b));
    }
    return kept;
  }

  const tipRow = (color, name, value) =>
    el("div", { class: "row" }, color ? el("span", { class: "swatch block", style: `background:${color}` }) : null, el("span", {}, name), el("b", {}, value));
  const at = (x) => el("div", { class: "at" }, (view.axis === "steps" ? "step " + whole(x) : si(x, 4) + " tokens"));

  // series: {name, color, x(): array in units of the axis, y, style: "line", "faint" or "dots", width}.
  // options: label, height, log, zero, fit (the first 2 % do not set the vertical range), format, marks().
  class Lines extends Base {
    constructor(host, series, options) {
      super(host, options.height || 220);
      this.series = series;
      this.options = options;
      this.label = options.label;
      this.bottom = BOTTOM;
      this.clipTop = TOP - 4;
      this.clipPad = 4;
      this.hidden = new Set();
    }
    shown() {
      return this.series.filter((line) => !this.hidden.has(line.name));
    }
    domain() {
      let low = Infinity, high = -Infinity;
      const atStart = view.range[0] <= view.full[view.axis][0];
      const from = view.range[0] + (this.options.fit && atStart ? 0.02 * (view.range[1] - view.range[0]) : 0);
      for (const pass of [from, -Infinity]) {
        for (const line of this.shown()) {
          const xs = line.x();
          const first = Math.max(0, lowerBound(xs, Math.max(pass, view.range[0])) - (pass === from && from > view.range[0] ? 0 : 1));
          const last = Math.min(xs.length, lowerBound(xs, view.range[1]) + 1);
          for (let i = first; i < last; i++) {
            const y = line.y[i];
            if (y === null || (this.options.log && y <= 0)) continue;
            if (line.style === "dots" && (xs[i] < view.range[0] || xs[i] > view.range[1])) continue;
            if (y < low) low = y;
            if (y > high) high = y;
          }
        }
        if (low <= high) break;
      }
      if (low > high) return this.options.log ? [0.1, 1] : [0, 1];
      if (this.options.log) {
        const room = Math.max(Math.pow(high / low, 0.05), 1.02);
        return [low / room, high * room];
      }
      if (this.options.zero) {
        low = Math.min(low, 0);
        high = Math.max(high, 0);
      }
      const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
      return [this.options.zero && low === 0 ? 0 : low - room, high + room];
    }
    draw() {
      this.begin();
      const y0 = this.height - BOTTOM;
      const [low, high] = this.domain();
      const log = this.options.log;
      const scale = log ? (y) => Math.log(y) : (y) => y;
      const py = (y) => y0 - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (y0 - TOP);
      this.py = py;
      this.xAxis(y0);
      const count = Math.max(2, Math.floor((y0 - TOP) / 42));
      const found = log ? logTicks(low, high, count) : ticks(low, high, count);
      for (const y of found) {
        this.svg.append(svg("line", { class: y === 0 && low < 0 ? "zero" : "grid", x1: this.l, x2: this.r, y1: py(y), y2: py(y) }));
        this.svg.append(svg("text", { x: this.l - 7, y: py(y) + 4, "text-anchor": "end" }, this.options.format(y)));
      }
      const lines = svg("g", { "clip-path": `url(#${this.clipId()})` });
      const x0 = this.l - view.range[0] * this.perUnit(), dx = this.perUnit();
      for (const mark of this.options.marks ? this.options.marks() : []) {
        lines.append(svg("line", { class: "mark", x1: this.px(mark), x2: this.px(mark), y1: TOP, y2: y0 }));
      }
      let above = false;
      // The first series is the run itself: it covers the others, and dots cover lines.
      const layer = { faint: 0, line: 1, dots: 2 };
      for (const line of this.shown().reverse().sort((a, b) => layer[a.style] - layer[b.style])) {
        const xs = line.x();
        const first = Math.max(0, lowerBound(xs, view.range[0]) - 1);
        const last = Math.min(xs.length, lowerBound(xs, view.range[1]) + 1);
        const ys = line.y, pieces = [];
        const kept = perPixel(xs, ys, first, last, dx);
        let pen = false;
        for (let k = 0; k < kept.length; k++) {
          const i = kept[k], y = ys[i];
          if (y === null || (log && y <= 0)) { pen = false; continue; }
          if (y > high) above = true;
          const lone = !pen && (k + 1 >= kept.length || ys[kept[k + 1]] === null);
          const x = x0 + xs[i] * dx;
          if (line.style === "dots" || lone) {
            lines.append(svg("circle", { cx: x, cy: py(y), r: line.style === "dots" ? 3.5 : 1.5, style: `fill:${line.color}` }));
          }
          pieces.push(pen ? "L" : "M", Math.round(x * 10) / 10, " ", Math.round(Math.min(Math.max(py(y), -1000), 5000) * 10) / 10);
          pen = true;
        }
        const path = pieces.join("");
        const faint = line.style === "faint";
        lines.append(svg("path", { d: path, fill: "none", "stroke-linejoin": "round", style: `stroke:${line.color}`,
          "stroke-width": faint ? 1 : line.width || 1.7, "stroke-opacity": faint ? 0.32 : 1, "stroke-dasharray": line.style === "dots" ? "2 4" : "none" }));
      }
      this.svg.append(lines);
      if (above) this.svg.append(svg("text", { x: this.r - 2, y: TOP + 11, "text-anchor": "end" }, "the first values are above this range"));
      this.dots = svg("g");
      this.svg.append(this.dots);
      this.end();
    }
    moveCursor() {
      super.moveCursor();
      if (view.cursor === null && this.dots) this.dots.replaceChildren();
    }
    leave() {
      super.leave();
      if (this.dots) this.dots.replaceChildren();
    }
    hover(event, px) {
      const x = view.range[0] + (px - this.l) / (this.r - this.l) * (view.range[1] - view.range[0]);
      const rows = [];
      let where = null, gap = Infinity;
      this.dots.replaceChildren();
      for (const line of this.shown()) {
        const xs = line.x();
        if (xs.length === 0) continue;
        const i = nearest(xs, x);
        if (Math.abs(this.px(xs[i]) - px) > 40) continue;
        if (Math.abs(xs[i] - x) < gap) {
          gap = Math.abs(xs[i] - x);
          where = xs[i];
        }
        rows.push(tipRow(line.color, line.name, (this.options.value || ((y) => plain(y, 5)))(line.y[i])));
        if (line.style !== "faint" && line.y[i] !== null) {
          this.dots.append(svg("circle", { cx: this.px(xs[i]), cy: this.py(line.y[i]), r: 3.5, style: `fill:${line.color}` }));
        }
      }
      if (rows.length === 0) return this.leave();
      this.showTip(px, 8, at(where), ...rows);
    }
  }

  // Areas on top of each other over common points. layers: {name, color, y}.
  class Stack extends Base {
    constructor(host, x, layers, options) {
      super(host, options.height || 220);
      this.x = x;
      this.layers = layers;
      this.options = options;
      this.label = options.label;
      this.bottom = BOTTOM;
      this.hidden = new Set();
    }
    shown() {
      return this.layers.filter((layer) => !this.hidden.has(layer.name));
    }
    draw() {
      this.begin();
      const xs = this.x(), y0 = this.height - BOTTOM;
      const first = Math.max(0, lowerBound(xs, view.range[0]) - 1);
      const last = Math.min(xs.length, lowerBound(xs, view.range[1]) + 1);
      const sums = new Array(Math.max(0, last - first)).fill(0);
      const areas = [];
      for (const layer of this.shown()) {
        const below = sums.slice();
        for (let i = first; i < last; i++) sums[i - first] += layer.y[i] || 0;
        areas.push([layer, below, sums.slice()]);
      }
      const sorted = sums.slice().sort((a, b) => a - b);
      const high = (sorted[Math.floor((sorted.length - 1) * 0.99)] || 1) * 1.08;
      const py = (y) => y0 - y / high * (y0 - TOP);
      this.xAxis(y0);
      for (const y of ticks(0, high, Math.max(2, Math.floor((y0 - TOP) / 42)))) {
        this.svg.append(svg("line", { class: "grid", x1: this.l, x2: this.r, y1: py(y), y2: py(y) }));
        this.svg.append(svg("text", { x: this.l - 7, y: py(y) + 4, "text-anchor": "end" }, this.options.format(y)));
      }
      const group = svg("g", { "clip-path": `url(#${this.clipId()})` });
      for (const [layer, below, above] of areas) {
        const up = [], down = [];
        for (let i = 0; i < above.length; i++) {
          const x = this.px(xs[first + i]).toFixed(1);
          up.push(`${x} ${py(above[i]).toFixed(1)}`);
          down.push(`${x} ${py(below[i]).toFixed(1)}`);
        }
        if (up.length === 0) continue;
        group.append(svg("path", { d: "M" + up.join("L") + "L" + down.reverse().join("L") + "Z", style: `fill:${layer.color};stroke:var(--card)`, "stroke-width": 0.6, "fill-opacity": 0.82 }));
      }
      this.svg.append(group);
      this.end();
    }
    hover(event, px) {
      const xs = this.x();
      if (xs.length === 0) return;
      const i = nearest(xs, view.range[0] + (px - this.l) / (this.r - this.l) * (view.range[1] - view.range[0]));
      const shown = this.shown();
      const total = shown.reduce((sum, layer) => sum + (layer.y[i] || 0), 0);
      this.showTip(px, 8, at(xs[i]), ...shown.slice().reverse().map((layer) =>
        tipRow(layer.color, layer.name, `${seconds(layer.y[i] || 0)} · ${Math.round((layer.y[i] || 0) / (total || 1) * 100)} %`)),
        tipRow(null, "together", seconds(total)));
    }
  }

  // The recipe to scale, and below it what happened. segments(): {from, to, title, lines, color};
  // marks(): {x, kind: "checkpoint", "restart" or "guard", text}; null: only the recipe.
  class Timeline extends Base {
    constructor(host, segments, marks) {
      super(host, marks ? 56 : 28);
      this.segments = segments;
      this.marks = marks || (() => []);
      this.hasMarks = marks !== null;
      this.clipPad = 7;
      this.label = "Recipe over the run";
    }
    draw() {
      this.begin();
      const group = svg("g", { "clip-path": `url(#${this.clipId()})` });
      this.svg.append(svg("text", { x: this.l - 7, y: 18, "text-anchor": "end" }, "recipe"));
      if (this.hasMarks) this.svg.append(svg("text", { x: this.l - 7, y: 45, "text-anchor": "end" }, "marks"));
      for (const segment of this.segments()) {
        const from = Math.max(this.px(segment.from), this.l), to = Math.min(this.px(segment.to), this.r);
        if (to <= this.l || from >= this.r) continue;
        group.append(svg("rect", { class: "segment", x: from, y: 2, width: Math.max(to - from, 1.5), height: 24, rx: 3, style: `fill:${segment.color}` }));
        const room = Math.floor((to - from - 12) / 6.6);
        if (room >= 2) {
          const title = segment.title.length > room ? segment.title.slice(0, Math.max(1, room - 1)) + "…" : segment.title;
          group.append(svg("text", { class: "segment-label", x: from + 6, y: 18 }, title));
        }
      }
      if (this.hasMarks) group.append(svg("line", { class: "grid", x1: this.l, x2: this.r, y1: 41, y2: 41 }));
      let occupied = -Infinity;
      for (const mark of this.marks()) {
        const x = this.px(mark.x);
        if (x < this.l - 6 || x > this.r + 6) continue;
        if (mark.kind === "checkpoint") {
          if (x - occupied < 5) continue;
          occupied = x;
          group.append(svg("path", { class: "glyph", d: `M${x} 35l5 6l-5 6l-5 -6z`, style: "fill:var(--s7)" }));
        }
      }
      for (const mark of this.marks()) {
        const x = this.px(mark.x);
        if (x < this.l - 6 || x > this.r + 6 || mark.kind === "checkpoint") continue;
        if (mark.kind === "restart") {
          group.append(svg("path", { d: `M${x - 5} 36l10 10m0 -10l-10 10`, fill: "none", "stroke-width": 2.4, style: "stroke:var(--s1)" }));
        } else {
          group.append(svg("path", { class: "glyph", d: `M${x} 33l6.5 13h-13z`, style: "fill:var(--s3)" }));
        }
      }
      this.svg.append(group);
      this.end();
    }
    hover(event, px) {
      const x = view.range[0] + (px - this.l) / (this.r - this.l) * (view.range[1] - view.range[0]);
      const parts = [];
      const near = this.marks().filter((mark) => Math.abs(this.px(mark.x) - px) < 7);
      for (const mark of near.slice(0, 5)) parts.push(el("div", {}, mark.text));
      if (near.length > 5) parts.push(el("div", { class: "at" }, `and ${near.length - 5} more`));
      const box = this.host.getBoundingClientRect();
      const segment = this.segments().find((one) => x >= one.from && x < one.to);
      if (segment && (event.clientY - box.top < 30 || parts.length === 0)) {
        parts.unshift(el("div", {}, segment.title), ...segment.lines.map((line) => el("div", { class: "at" }, line)));
      }
      if (parts.length === 0) return this.leave();
      this.showTip(px, 60, at(x), ...parts);
    }
  }

  // ---- Heat map -----------------------------------------------------------------------------

  const RAMP = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
  function rampColor(share) {
    const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
    const i = Math.min(Math.floor(at), RAMP.length - 2);
    return "rgb(" + RAMP[i].map((from, k) => Math.round(from + (RAMP[i + 1][k] - from) * (at - i))).join(",") + ")";
  }
  const rampGradient = "linear-gradient(90deg," + RAMP.map((_, i) => rampColor(i / (RAMP.length - 1))).join(",") + ")";
  const parts = (color) => (color.startsWith("#") ? color.slice(1).match(/../g).map((two) => parseInt(two, 16)) : color.match(/\d+/g).map(Number));
  // A pixel of image data, whose bytes are red, green, blue and opacity.
  const little = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
  function pixel(color) {
    const [red, green, blue] = parts(color.trim());
    return (little ? (255 << 24) | (blue << 16) | (green << 8) | red : (red << 24) | (green << 16) | (blue << 8) | 255) >>> 0;
  }
  const COLORS = Uint32Array.from({ length: 254 }, (_, i) => pixel(rampColor(i / 253)));
  const NOT_FINITE = 254, NO_DATA = 255;

  // rows(): {name, group}; codes(row): by column, 0 to 255; edges(): columns + 1 values of the axis.
  class Heat extends Base {
    constructor(host, source) {
      super(host, 100);
      this.source = source;
      this.label = "Precision over layers and time";
    }
    // Of the current rows, also before they are drawn.
    layout() {
      const rows = this.source.rows().length;
      this.each = Math.min(22, Math.max(rows > 150 ? 2 : 5, Math.floor(430 / Math.max(1, rows))));
      this.height = rows * this.each + BOTTOM + 4;
      this.surface.style.minHeight = this.height + "px";
    }
    measure() {
      this.layout();
      return super.measure();
    }
    paint(canvas, dense) {
      const rows = this.source.rows().length, edges = this.source.edges(), each = this.each;
      const style = getComputedStyle(document.documentElement);
      const empty = pixel(style.getPropertyValue("--void")), broken = pixel(style.getPropertyValue("--s3"));
      const left = Math.round(this.l * dense), width = Math.max(1, Math.round((this.r - this.l) * dense));
      // The column of the map under each column of pixels; -1: none.
      const columns = new Int32Array(width).fill(-1);
      for (let column = 0; column + 1 < edges.length; column++) {
        const from = Math.max(0, Math.round(this.px(edges[column]) * dense) - left);
        const to = Math.min(width, Math.round(this.px(edges[column + 1]) * dense) - left);
        if (from < to) columns.fill(column, from, to);
      }
      const height = Math.max(1, Math.round(rows * each * dense)), gap = each >= 8 ? 1 : 0;
      const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer).fill(empty);
      const line = new Uint32Array(width);
      for (let row = 0; row < rows; row++) {
        const codes = this.source.codes(row);
        for (let x = 0; x < width; x++) {
          const code = columns[x] < 0 ? NO_DATA : codes[columns[x]];
          line[x] = code === NO_DATA ? empty : code === NOT_FINITE ? broken : COLORS[code];
        }
        const end = Math.round((row + 1) * each * dense) - gap;
        for (let y = Math.round(row * each * dense); y < end; y++) pixels.set(line, y * width);
      }
      canvas.getContext("2d").putImageData(image, left, 0);
    }
    draw() {
      const rows = this.source.rows(), each = this.each;
      this.svg = svg("svg", { width: this.width, height: this.height, viewBox: `0 0 ${this.width} ${this.height}`, style: "position:absolute;left:0;top:0" });
      const canvas = el("canvas", { style: `display:block;width:${this.width}px;height:${this.height}px` });
      const dense = Math.min(window.devicePixelRatio || 1, 2);
      canvas.width = Math.round(this.width * dense);
      canvas.height = Math.round(this.height * dense);
      this.paint(canvas, dense);
      let occupied = -Infinity, group = null;
      for (let row = 0; row < rows.length; row++) {
        if (rows[row].group === group) continue;
        group = rows[row].group;
        const y = row * each;
        if (y - occupied < 15) continue;
        occupied = y;
        this.svg.append(svg("text", { x: this.l - 7, y: y + Math.min(each, 14) / 2 + 5, "text-anchor": "end" }, group));
      }
      const axis = svg("g");
      const count = Math.max(2, Math.floor((this.r - this.l) / 90));
      for (const x of ticks(view.range[0], view.range[1], count)) {
        const px = this.px(x);
        axis.append(svg("text", { x: px, y: this.height - 8, "text-anchor": px > this.r - 12 ? "end" : px < this.l + 4 ? "start" : "middle" }, si(x, 4)));
      }
      this.svg.append(axis);
      this.cursor = svg("line", { class: "cursor", y1: 0, y2: rows.length * each, visibility: "hidden", style: "stroke:#fff" });
      this.svg.append(this.cursor);
      this.surface.style.position = "relative";
      this.surface.style.touchAction = "pan-y";
      this.surface.replaceChildren(canvas, this.svg);
      this.moveCursor();
    }
    hover(event, px) {
      const edges = this.source.edges();
      const x = view.range[0] + (px - this.l) / (this.r - this.l) * (view.range[1] - view.range[0]);
      const column = lowerBound(edges, x) - 1;
      const box = this.host.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / this.each);
      if (column < 0 || column + 1 >= edges.length || row < 0 || row >= this.source.rows().length) return this.leave();
      this.showTip(px, Math.max(0, row * this.each + 18), ...this.source.tip(row, column));
    }
  }

  // A button for each series, which hides and shows it.
  function legend(chart, entries) {
    const node = el("div", { class: "legend" });
    for (const entry of entries) {
      const button = el("button", { type: "button", "aria-pressed": "true" },
        el("span", { class: "swatch" + (entry.block ? " block" : ""), style: `background:${entry.color}${entry.faint ? ";opacity:0.35" : ""}` }), entry.name);
      button.addEventListener("click", () => {
        const hide = !chart.hidden.has(entry.name);
        if (hide) chart.hidden.add(entry.name); else chart.hidden.delete(entry.name);
        button.setAttribute("aria-pressed", String(!hide));
        redraw();
      });
      node.append(button);
    }
    return node;
  }

  return { times, allDrawn, drawAll, el, view, listeners, drawn, redraw, setRange, zoom, pan, reset, zoomed, along, lowerBound, Lines, Stack, Timeline, Heat, legend, rampGradient,
    si, plain, whole, percent, seconds, tipRow, NOT_FINITE, NO_DATA };
})();
