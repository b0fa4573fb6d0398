// The sections of the report, from the data in the page.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { el, view, si, plain, whole, percent, seconds } = Charts;
  const main = document.getElementById("main");
  const color = (i) => `var(--s${i % 8})`;
  const own = data.jobs[0];

  // ---- Theme ----------------------------------------------------------------------------------

  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("nibble-report-theme"); } catch (error) { return null; } };
  const wished = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  function setTheme(theme) {
    root.dataset.theme = theme;
    root.style.colorScheme = theme;
    button.textContent = theme === "dark" ? "☀" : "☾";
    Charts.redraw();
  }
  setTheme(stored() || (wished.matches ? "dark" : "light"));
  wished.addEventListener("change", () => { if (!stored()) setTheme(wished.matches ? "dark" : "light"); });
  button.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("nibble-report-theme", theme); } catch (error) { /* a file without storage */ }
    setTheme(theme);
  });

  // ---- Axes -----------------------------------------------------------------------------------

  // Steps as tokens of a job; kept, since every drawing asks for them.
  const toTokens = (job, step) => Charts.along(job.tokens[0], job.tokens[1], step);
  function onAxis(steps, job) {
    let tokens = null;
    return () => {
      if (view.axis === "steps") return steps;
      if (tokens === null) tokens = steps.map((step) => toTokens(job, step));
      return tokens;
    };
  }
  const place = (step) => (view.axis === "steps" ? step : toTokens(own, step));

  let first = Infinity, last = -Infinity;
  let least = Infinity, most = -Infinity;
  for (const job of data.jobs) {
    const xs = job.loss[0];
    if (xs.length === 0) continue;
    const end = xs[xs.length - 1];
    first = Math.min(first, xs[0]);
    last = Math.max(last, end);
    least = Math.min(least, toTokens(job, xs[0]));
    most = Math.max(most, toTokens(job, end));
  }
  const drawable = last > first;
  if (data.axis === "tokens" && own.tokens[0].length > 0) view.axis = "tokens";
  if (drawable) {
    view.full = { steps: [first, last], tokens: [least, Math.max(most, least + 1)] };
    view.range = view.full[view.axis].slice();
    // From the end of the warm-up, at the highest learning rate: the losses before it would flatten the rest.
    const [steps, rates] = data.learning_rate;
    const warm = steps[rates.indexOf(Math.max(...rates))];
    if (warm > first && warm < (first + last) / 2) view.range[0] = place(warm);
  }
  const axis = document.getElementById("axis"), zoom = document.getElementById("zoom"), range = document.getElementById("range");
  for (const name of ["steps", "tokens"]) {
    const choice = el("button", { type: "button", "aria-pressed": String(name === view.axis) }, name);
    choice.addEventListener("click", () => {
      if (view.axis === name) return;
      const share = (x) => (x - view.full[view.axis][0]) / (view.full[view.axis][1] - view.full[view.axis][0]);
      const [from, to] = view.range.map(share);
      view.axis = name;
      for (const other of axis.children) other.setAttribute("aria-pressed", String(other === choice));
      const [first, last] = view.full[name];
      view.cursor = null;
      Charts.setRange(first + from * (last - first), first + to * (last - first));
    });
    axis.append(choice);
  }
  for (const [text, label, run] of [["←", "Earlier", () => Charts.pan(-0.4)], ["−", "Zoom out", () => Charts.zoom(2)],
    ["+", "Zoom in", () => Charts.zoom(0.5)], ["→", "Later", () => Charts.pan(0.4)], ["whole run", "Show the whole run", Charts.reset]]) {
    const one = el("button", { type: "button", title: label, "aria-label": label }, text);
    one.addEventListener("click", run);
    zoom.append(one);
  }
  Charts.listeners.push(() => {
    const [from, to] = view.range;
    range.textContent = view.axis === "steps" ? `steps ${whole(Math.max(0, Math.ceil(from - 1e-6)))} to ${whole(Math.floor(to + 1e-6))}` : `${si(from, 4)} to ${si(to, 4)} tokens`;
  });
  if (!drawable) document.querySelector(".controls").hidden = true;

  // ---- Head -----------------------------------------------------------------------------------

  document.getElementById("title").append(data.job.id, el("span", { class: "state " + (data.job.tone || "") }, data.job.state));
  document.getElementById("subtitle").textContent = data.job.subtitle;
  document.getElementById("foot").textContent = `Made ${data.made} UTC by ${data.version}. Drag over a chart to zoom, double-click for the whole run; Ctrl and the wheel, or two fingers, also zoom.`;
  const facts = el("div", { class: "facts" });
  for (const fact of data.headline) {
    facts.append(el("div", { class: "fact " + (fact.tone || "") }, el("div", { class: "label" }, fact.label), el("div", { class: "value" }, fact.value), el("div", { class: "note" }, fact.note || "")));
  }
  main.append(facts);
  for (const note of data.notes) main.append(el("p", { class: "notice" }, note));

  function section(title, lead, into = main) {
    const node = el("section", {}, el("h2", {}, title), lead ? el("p", { class: "lead" }, lead) : null);
    into.append(node);
    return node;
  }
  const host = (node) => node.appendChild(el("div"));
  const tokensPossible = own.tokens[0].length > 0;
  if (!tokensPossible) axis.hidden = true;

  // ---- Loss -----------------------------------------------------------------------------------

  const restarts = () => data.marks.filter((mark) => mark.kind === "restart").map((mark) => place(mark.step));
  const changes = () => own.timeline.slice(1).map((revision) => place(revision.first));

  if (drawable) {
    const node = section("Loss", data.texts.loss);
    const series = [], entries = [];
    data.jobs.forEach((job, i) => {
      const raw = { name: `${job.id} (each step)`, color: color(i), x: onAxis(job.loss[0], job), y: job.loss[1], style: "faint" };
      const smooth = { name: job.id, color: color(i), x: onAxis(job.smooth[0], job), y: job.smooth[1], style: "line", width: i === 0 ? 2.1 : 1.6 };
      series.push(raw, smooth);
    });
    data.validation.forEach((set, i) => {
      series.push({ name: `validation: ${set.set}`, color: color(data.jobs.length + i), x: onAxis(set.points[0], own), y: set.points[1], style: "dots" });
    });
    data.abandoned.forEach((points) => {
      series.push({ name: "abandoned steps", color: "var(--s3)", x: onAxis(points[0], own), y: points[1], style: "line", width: 1.2 });
    });
    // A name once: chart and legend switch lines by name.
    const seen = new Set();
    for (const line of series) {
      if (seen.has(line.name)) continue;
      seen.add(line.name);
      entries.push({ name: line.name, color: line.color, faint: line.style === "faint" });
    }
    const options = { label: "Loss", height: 330, fit: true, format: (y) => plain(y, 3), marks: changes, value: (y) => plain(y, 5) };
    const chart = new Charts.Lines(el("div"), series, options);
    const keys = Charts.legend(chart, entries);
    const fit = el("button", { type: "button", class: "tool", "aria-pressed": "false" }, "all values");
    fit.addEventListener("click", () => {
      options.fit = !options.fit;
      fit.setAttribute("aria-pressed", String(!options.fit));
      Charts.redraw();
    });
    const log = el("button", { type: "button", class: "tool", "aria-pressed": "false" }, "log");
    log.addEventListener("click", () => {
      options.log = !options.log;
      log.setAttribute("aria-pressed", String(Boolean(options.log)));
      Charts.redraw();
    });
    keys.append(el("span", { class: "gap" }), fit, log);
    node.append(keys, chart.host);
    const segments = (job) => () => {
      const at = (step) => (view.axis === "steps" ? step : toTokens(job, step));
      return job.timeline.map((revision, i) => ({
        from: at(revision.first),
        to: i + 1 < job.timeline.length ? at(job.timeline[i + 1].first) : Math.max(at(job.steps), job === own ? view.full[view.axis][1] : 0),
        title: `${revision.number} · ${revision.title}`, lines: revision.lines, color: `var(--r${i % 6})`,
      }));
    };
    const marks = () => data.marks.map((mark) => ({ x: place(mark.step), kind: mark.kind, text: mark.text }));
    new Charts.Timeline(host(node), segments(own), marks);
    node.append(el("div", { class: "scale" }, "Marks: ◆ checkpoint, × restart, ▲ guard"));
    data.jobs.slice(1).forEach((job, i) => {
      node.append(el("div", { class: "scale" }, el("span", { class: "key" }, el("i", { style: `background:${color(i + 1)}` }), job.id)));
      new Charts.Timeline(host(node), segments(job), null);
    });
  }

  if (data.difference.series.length > 0) {
    const node = section("Relative loss difference", data.texts.difference);
    const series = [], entries = [];
    data.difference.series.forEach((one) => {
      const at = data.jobs.findIndex((job) => job.id === one.job);
      const x = (steps, tokens) => () => (view.axis === "steps" ? steps : tokens);
      series.push({ name: `${one.job} (each step)`, color: color(at), x: x(one.steps.raw[0], one.tokens.raw[0]), y: null, both: [one.steps.raw[1], one.tokens.raw[1]], style: "faint" });
      series.push({ name: one.job, color: color(at), x: x(one.steps.smooth[0], one.tokens.smooth[0]), y: null, both: [one.steps.smooth[1], one.tokens.smooth[1]], style: "line", width: 2 });
    });
    for (const line of series) {
      Object.defineProperty(line, "y", { get: () => line.both[view.axis === "steps" ? 0 : 1] });
      entries.push({ name: line.name, color: line.color, faint: line.style === "faint" });
    }
    const chart = new Charts.Lines(el("div"), series, { label: "Relative loss difference", height: 240, fit: true, zero: true, marks: changes,
      format: (y) => plain(y, 3) + " %", value: (y) => (y === null ? "not finite" : (y > 0 ? "+" : "") + plain(y, 3) + " %") });
    node.append(Charts.legend(chart, entries), chart.host);
  } else if (data.difference.note) {
    section("Relative loss difference", data.difference.note);
  }

  // ---- Precision ------------------------------------------------------------------------------

  if (data.precision && drawable) {
    const precision = data.precision;
    const node = section("Precision of the quantised operands", data.texts.precision);
    const rows = precision.layers.length, columns = precision.edges.length - 1;
    const cells = new Map();
    const decoded = (figure, operand) => {
      const key = figure + "/" + operand;
      if (!cells.has(key)) {
        const text = atob(precision.figures[figure].cells[operand]);
        const codes = new Uint8Array(rows * columns);
        for (let i = 0; i < codes.length; i++) codes[i] = text.charCodeAt(i);
        cells.set(key, codes);
      }
      return cells.get(key);
    };
    const parts = precision.layers.map((name) => {
      const found = /^blocks\.(\d+)\.(.*)$/.exec(name);
      return found ? { block: Number(found[1]), kind: found[2] } : { block: -1, kind: name };
    });
    const kinds = [...new Set(parts.map((part) => part.kind))];
    const chosen = { figure: 0, operand: precision.worst_operand, rows: "blocks" };
    // Rows of the map: the layers that each of them stands for.
    let groups = [];
    let combined = null;
    // The codes at the ends of the colours: of what is shown, so that small differences are visible.
    let lowest = 0, highest = 253;
    function regroup() {
      const byKey = new Map();
      precision.layers.forEach((name, i) => {
        const { block, kind } = parts[i];
        if (chosen.rows.startsWith("kind:") && kind !== chosen.rows.slice(5)) return;
        const key = chosen.rows === "blocks" ? "block " + block : name;
        if (!byKey.has(key)) byKey.set(key, { name: key, group: block < 0 ? "–" : String(block), layers: [] });
        byKey.get(key).layers.push(i);
      });
      groups = [...byKey.values()];
      combined = null;
    }
    // When the map is drawn: decoding takes longer than everything else on the page.
    function combine() {
      const operands = chosen.operand < 0 ? precision.operands.map((_, i) => i) : [chosen.operand];
      combined = new Uint8Array(groups.length * columns).fill(Charts.NO_DATA);
      const none = Charts.NO_DATA;
      for (const operand of operands) {
        const codes = decoded(chosen.figure, operand);
        for (let row = 0; row < groups.length; row++) {
          for (const layer of groups[row].layers) {
            let at = row * columns;
            for (let i = layer * columns; i < (layer + 1) * columns; i++, at++) {
              const code = codes[i];
              if (code !== none && (combined[at] === none || code > combined[at])) combined[at] = code;
            }
          }
        }
      }
      lowest = 253;
      highest = 0;
      for (const code of combined) {
        if (code >= Charts.NOT_FINITE) continue;
        if (code < lowest) lowest = code;
        if (code > highest) highest = code;
      }
      highest = Math.max(highest, Math.min(253, lowest + 25));
      lowest = Math.max(0, Math.min(lowest, highest - 25));
      scale();
    }
    const valueOf = (figure, code) => {
      if (code === Charts.NO_DATA) return "not quantised, or not sampled";
      if (code === Charts.NOT_FINITE) return "not finite";
      if (code === 0) return figure.low_is_zero ? `below ${percent(figure.low)}` : percent(figure.low);
      return percent(figure.low * Math.pow(figure.high / figure.low, code / 253));
    };
    const low = el("span"), high = el("span");
    function scale() {
      const figure = precision.figures[chosen.figure];
      const at = (code) => percent(figure.low * Math.pow(figure.high / figure.low, code / 253), 3);
      low.textContent = (figure.low_is_zero && lowest === 0 ? "≤ " : "") + at(lowest);
      high.textContent = at(highest);
    }
    const select = (label, options, value, change) => {
      const node = el("select", {});
      for (const [key, text] of options) node.append(el("option", { value: key }, text));
      node.value = value;
      node.addEventListener("change", () => { change(node.value); regroup(); Charts.redraw(); });
      return el("label", {}, label, node);
    };
    node.append(el("div", { class: "selects" },
      select("Figure", precision.figures.map((figure, i) => [String(i), figure.label]), "0", (value) => { chosen.figure = Number(value); }),
      select("Operand", [["-1", "worst of all"], ...precision.operands.map((name, i) => [String(i), name])], String(chosen.operand), (value) => { chosen.operand = Number(value); }),
      select("Rows", [["blocks", "blocks: the worst layer of each"], ["layers", "every layer"], ...kinds.map((kind) => ["kind:" + kind, kind])], "blocks", (value) => { chosen.rows = value; })));
    regroup();
    let edges = null, edgesAxis = null;
    const map = new Charts.Heat(el("div"), {
      rows: () => groups,
      edges: () => {
        if (edgesAxis !== view.axis) {
          edges = precision.edges.map(place);
          edgesAxis = view.axis;
        }
        return edges;
      },
      codes: (row) => {
        if (combined === null) combine();
        return combined.subarray(row * columns, (row + 1) * columns).map((code) =>
          (code >= Charts.NOT_FINITE ? code : Math.round((code - lowest) / (highest - lowest) * 253)));
      },
      tip: (row, column) => {
        const figure = precision.figures[chosen.figure];
        const code = combined[row * columns + column];
        const parts = [el("div", { class: "at" }, `steps ${whole(precision.edges[column])} to ${whole(precision.edges[column + 1] - 1)}`)];
        parts.push(Charts.tipRow(null, groups[row].name, valueOf(figure, code)));
        if (code !== Charts.NO_DATA && (groups[row].layers.length > 1 || chosen.operand < 0)) {
          const operands = chosen.operand < 0 ? precision.operands.map((_, i) => i) : [chosen.operand];
          for (const operand of operands) {
            const layer = groups[row].layers.find((one) => decoded(chosen.figure, operand)[one * columns + column] === code);
            if (layer === undefined) continue;
            parts.push(el("div", { class: "at" }, `${precision.layers[layer]}, ${precision.operands[operand]}`));
            break;
          }
        }
        return parts;
      },
    });
    node.append(map.host, el("div", { class: "scale" }, low, el("span", { class: "ramp", style: "background:" + Charts.rampGradient }), high,
      el("span", { class: "key" }, el("i", { style: "background:var(--void)" }), "not quantised or not sampled"),
      el("span", { class: "key" }, el("i", { style: "background:var(--s3)" }), "not finite")));
    if (precision.worst.rows.length > 0) {
      node.append(el("details", { style: "margin-top:12px" }, el("summary", {}, el("span", {}, "Operands with the largest relative error in the last sample")), table(precision.worst)));
    }
  }

  // ---- Speed and optimisation -----------------------------------------------------------------

  function lines(title, lead, series, options, into) {
    const node = section(title, lead, into);
    const chart = new Charts.Lines(el("div"), series, { label: title, height: 200, ...options });
    if (series.length > 1) node.append(Charts.legend(chart, series.map((line) => ({ name: line.name, color: line.color, faint: line.style === "faint" }))));
    node.append(chart.host);
  }
  const line = (name, points, i, style) => ({ name, color: color(i), x: onAxis(points[0], own), y: points[1], style: style || "line" });
  if (drawable) {
    const speed = el("div", { class: "pair" });
    main.append(speed);
    lines("Throughput", data.texts.throughput, [line("each sample", data.throughput.raw, 0, "faint"), line("smoothed", data.throughput.smooth, 0)],
      { zero: true, format: (y) => si(y, 3), value: (y) => (y === null ? "not finite" : si(y, 4) + " tokens/s"), marks: restarts }, speed);
    if (data.parts.layers.length > 0) {
      const node = section("Where a step's time goes", data.texts.parts, speed);
      const layers = data.parts.layers.map((part, i) => ({ name: part.name, y: part.y, color: part.name === "other" ? "var(--faint)" : color([0, 5, 2, 4, 3, 1][i % 6]) }));
      const chart = new Charts.Stack(el("div"), onAxis(data.parts.x, own), layers, { label: "Step time by part", height: 200, format: seconds });
      node.append(Charts.legend(chart, layers.map((layer) => ({ name: layer.name, color: layer.color, block: true }))), chart.host);
    } else {
      lines("Step time", data.texts.parts, [line("each sample", data.step_seconds.raw, 2, "faint"), line("smoothed", data.step_seconds.smooth, 2)],
        { zero: true, format: seconds, value: seconds, marks: restarts }, speed);
    }
    const optimisation = el("div", { class: "pair" });
    main.append(optimisation);
    lines("Gradient norm", "Before clipping, on a logarithmic scale.", [line("each sample", data.gradient_norm.raw, 0, "faint"), line("smoothed", data.gradient_norm.smooth, 0)],
      { log: true, format: (y) => plain(y, 2), marks: changes }, optimisation);
    lines("Learning rate", "", [line("learning rate", data.learning_rate, 2)], { zero: true, format: (y) => plain(y, 3), marks: changes }, optimisation);
  }

  // ---- Tables ---------------------------------------------------------------------------------

  // table: {head: [{text, kind}], rows: [[text]]}; kind: "number", "tight", "wide" or "".
  function table(content) {
    const body = el("tbody");
    for (const row of content.rows) {
      const line = el("tr");
      row.forEach((cell, i) => line.append(el("td", { class: content.head[i].kind || "" }, cell)));
      body.append(line);
    }
    const head = el("tr");
    for (const column of content.head) head.append(el("th", { class: column.kind === "number" ? "number" : "" }, column.text));
    return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), body));
  }
  function fold(title, count, open, ...content) {
    const details = el("details", open ? { open: "" } : {}, el("summary", {}, el("h2", {}, title), count === null ? null : el("span", { class: "count" }, count)), ...content);
    main.append(el("section", {}, details));
    return details;
  }
  for (const content of data.tables) {
    const details = fold(content.title, String(content.rows.length), content.open, content.lead ? el("p", { class: "lead" }, content.lead) : null);
    if (content.rows.length === 0) {
      details.append(el("p", { class: "lead" }, "None."));
      continue;
    }
    const shown = table(content);
    if (content.rows.length > 12) {
      const search = el("input", { type: "search", placeholder: "filter", "aria-label": "Filter " + content.title });
      search.addEventListener("input", () => {
        const words = search.value.toLowerCase();
        for (const row of shown.querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(words);
      });
      details.append(search);
    }
    details.append(shown);
  }
  const list = (pairs) => {
    const node = el("dl");
    for (const [name, value] of pairs) node.append(el("dt", {}, name), el("dd", {}, value));
    return node;
  };
  fold("Environment", null, true, list(data.environment));
  if (data.recipe_table) fold("Resolved recipe", data.recipe_title, false, el("pre", {}, data.recipe_table));
  if (data.spec) fold("Spec", null, false, el("pre", {}, data.spec));

  Charts.redraw();
})();
