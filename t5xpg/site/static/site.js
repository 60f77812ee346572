"use strict";
// Charts to look into, and comparisons of runs. The data of a run is a script, data/<id>.js, so that file:// can load it.
const t5xpg = (() => {
  const runs = new Map();
  const root = document.body.dataset.root;
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f"];
  if (matchMedia("(prefers-color-scheme: dark)").matches) [COLOURS[0], COLOURS[5]] = [COLOURS[5], COLOURS[0]]; // as pictures
  const AXES = { steps: "training step", tokens: "target tokens", flops: "FLOPs of training", seconds: "seconds of updates" };

  let redraw = null; // what shows the runs again, once they are drawn
  const add = (run) => {
    runs.set(run.id, run);
    redraw?.();
  };

  // Served by `make site SERVE=1` or `make watch`, the data of local runs is what they have recorded by now.
  const follow = (shown) => {
    if (location.protocol === "file:") return;
    setInterval(() => {
      if (document.hidden) return;
      for (const run of shown().filter((one) => !one.published)) {
        const script = element("script", { src: `${root}data/${encodeURIComponent(run.id)}.js?${Date.now()}` });
        script.onload = script.onerror = () => script.remove();
        document.head.append(script);
      }
    }, 3000);
  };

  const load = (id) => new Promise((resolve) => {
    if (runs.has(id)) return resolve();
    const script = document.createElement("script");
    script.src = `${root}data/${encodeURIComponent(id)}.js`;
    script.onload = script.onerror = resolve;
    document.head.append(script);
  });

  const element = (tag, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  };

  const number = (value) => {
    if (value == null) return "–";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  };

  // An exponential mean whose first values are not drawn towards 0.
  const smoothed = (values, weight) => {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = weight * sum + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return sum / total;
    });
  };

  const drawn = new WeakMap(); // what ends the plot of a place

  // [{name, x, y, low?, high?}] as one picture; `log` of the values.
  const draw = (place, lines, xLabel, log) => {
    drawn.get(place)?.();
    drawn.delete(place);
    place.replaceChildren();
    if (!lines.length) return void place.append(element("p", { className: "note" }, "Nothing to draw: choose runs below."));
    const style = getComputedStyle(document.body);
    const axis = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
    const tables = [], series = [{ label: xLabel, value: (_, value) => number(value) }], bands = [];
    lines.forEach((line, n) => {
      const colour = COLOURS[n % COLOURS.length];
      const columns = line.low ? [line.low, line.high, line.y] : [line.y];
      tables.push([line.x, ...columns]);
      if (line.low) {
        bands.push({ series: [series.length + 1, series.length], fill: colour + "30" });
        for (const _ of [0, 1]) series.push({ show: true, stroke: "transparent", spanGaps: true, points: { show: false }, class: "edge" });
      }
      series.push({
        label: line.name + (n >= COLOURS.length ? " (dashed)" : ""), stroke: colour, width: 2, spanGaps: true,
        dash: n >= COLOURS.length ? [6, 4] : undefined,
        points: { show: line.x.length <= 60, size: 5 }, value: (_, value) => number(value),
      });
    });
    const plot = new uPlot({
      width: place.clientWidth, height: Math.min(420, Math.max(260, place.clientWidth * 0.5)), series, bands,
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      axes: [{ ...axis, label: xLabel, values: (_, ticks) => ticks.map(number) }, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => tick == null ? "" : number(tick)) }],
    }, uPlot.join(tables), place);
    const observer = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: plot.height }));
    observer.observe(place);
    drawn.set(place, () => { observer.disconnect(); plot.destroy(); });
  };

  // A curve of a run as a line over `x`; null where the run does not have both.
  const lineOf = (run, curve, x, smoothing, cliff) => {
    const found = run.curves[curve], whole = run.totals[x];
    if (!found || whole == null) return null;
    const first = cliff || found[0].length < 3 ? 0 : 1;
    const [steps, ...columns] = found.map((column) => column.slice(first));
    const [y, low, high] = columns.map((column) => smoothed(column, smoothing));
    return { name: run.id, x: steps.map((step) => step && step * whole / run.totals.steps), y, low, high };
  };

  const options = (select, names) => {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(chosen)) select.value = chosen;
  };

  const curvesOf = (shown) => [...new Set(shown.flatMap((run) => Object.keys(run.curves)))];

  const experiment = () => {
    const place = document.querySelector(".chart");
    if (!place || !runs.size) return;
    const shown = () => [...runs.values()];
    const select = element("select"), log = element("input", { type: "checkbox" }), first = element("input", { type: "checkbox" });
    const plot = element("div");
    const show = () => {
      options(select, curvesOf(shown()));
      draw(plot, shown().map((run) => lineOf(run, select.value, "steps", 0, first.checked)).filter(Boolean), AXES.steps, log.checked);
    };
    const compared = element("a", { href: `${root}compare.html#${new URLSearchParams(shown().map((run) => ["run", run.id]))}` }, "compare with others");
    place.replaceChildren(element("p", { className: "tools" }, element("label", {}, "curve ", select), element("label", {}, log, " log axis"),
      element("label", {}, first, " first value, too"), compared), plot);
    for (const input of [select, log, first]) input.addEventListener("change", show);
    document.body.classList.add("drawn");
    show();
    redraw = show;
    follow(shown);
  };

  const text = (value) => value == null ? "–" : typeof value !== "string" ? JSON.stringify(value) : /^[0-9a-f]{40,64}$/.test(value) ? `${value.slice(0, 12)}…` : value;

  // What differs between runs, and what does not, of all that their numbers rest on.
  const why = (place, shown) => {
    place.replaceChildren();
    if (shown.length < 2) return;
    const parts = ["code", "gin", "data", "versions", "hardware"], same = [], rows = [];
    for (const part of parts) {
      const values = shown.map((run) => run.circumstances[part]);
      if (values.some((value) => !value)) continue;
      const names = [...new Set(values.flatMap(Object.keys))].filter((name) =>
        new Set(values.map((value) => JSON.stringify(value[name] ?? null))).size > 1);
      if (!names.length) same.push(part);
      for (const name of names) {
        const cells = values.map((value) => element("td", {}, text(value[name])));
        rows.push(element("tr", {}, element("th", { scope: "row" }, `${part}: ${name}`), ...cells));
      }
    }
    const head = element("thead", {}, element("tr", {}, element("th"), ...shown.map((run) => element("th", {}, run.id))));
    place.append(element("h2", {}, "Why do these differ?"),
      element("p", {}, `${rows.length} value${rows.length === 1 ? "" : "s"} differ${rows.length === 1 ? "s" : ""}${same.length ? `; the same: ${same.join(", ")}` : ""}.`));
    if (rows.length) place.append(element("div", { className: "wide" }, element("table", {}, head, element("tbody", {}, ...rows))));
  };

  const compare = () => {
    const form = document.getElementById("compare"), plot = document.getElementById("plot");
    const boxes = [...document.querySelectorAll('input[name="run"]')];
    const asked = new URLSearchParams(location.hash.slice(1));
    const wanted = asked.getAll("run").length ? asked.getAll("run") : boxes.slice(0, 2).map((box) => box.value);
    for (const box of boxes) box.checked = wanted.includes(box.value);
    for (const name of ["x", "smooth"]) if (asked.has(name)) form.elements[name].value = asked.get(name);
    form.elements.log.checked = asked.get("log") === "on";
    let first = asked.get("curve");
    const show = async () => {
      const ids = boxes.filter((box) => box.checked).map((box) => box.value);
      await Promise.all(ids.map(load));
      const shown = ids.map((id) => runs.get(id)).filter(Boolean);
      options(form.elements.curve, curvesOf(shown));
      if (first && curvesOf(shown).includes(first)) form.elements.curve.value = first;
      first = null;
      const { curve, x, smooth, log } = form.elements;
      const lines = shown.map((run) => lineOf(run, curve.value, x.value, Number(smooth.value), false)).filter(Boolean);
      draw(plot, lines, AXES[x.value], log.checked);
      const without = shown.filter((run) => !lines.some((line) => line.name === run.id)).map((run) => run.id);
      if (without.length) plot.append(element("p", { className: "note" }, `Without this curve, or without ${AXES[x.value]}: ${without.join(", ")}.`));
      why(document.getElementById("why"), shown);
      const state = new URLSearchParams([...ids.map((id) => ["run", id]), ["curve", curve.value], ["x", x.value], ["smooth", smooth.value], ...(log.checked ? [["log", "on"]] : [])]);
      history.replaceState(null, "", `#${state}`);
    };
    form.addEventListener("input", show);
    for (const box of boxes) box.addEventListener("change", show);
    show().then(() => { redraw = show; });
    follow(() => boxes.filter((box) => box.checked).map((box) => runs.get(box.value)).filter(Boolean));
  };

  return { add, experiment, compare };
})();
