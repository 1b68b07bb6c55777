"use strict";
/* The plots of a kernel type: a curve for each weight, or points over a size that is picked; the roofline. */
(() => {
  const { element: h, number, t } = opatlas;
  const { SIZES, RATES, titleOf, rangeOf } = opatlas.parts;
  /* So many curves have colours; the others are grey. */
  const COLOURED = 7;
  /* Rows beside each other whose duration differs more are at the edge of a tile. */
  const BESIDE = 1.05, STEP = 1.05;

  /** Adds the dimensions of the inputs as sizes: what kernels without sizes of their own depend on. */
  function addDimensions(columns) {
    if (columns.dimensions || !columns.has("input_shapes")) return;
    columns.dimensions = [];
    const found = new Map();
    for (let row = 0; row < columns.length; row++) {
      String(columns.get("input_shapes", row)).split(";").forEach((shape, input) => shape && shape.split(",").forEach((size, place) => {
        const name = `${input + 1}.${place + 1}`;
        if (!found.has(name)) found.set(name, new Array(columns.length).fill(null));
        found.get(name)[row] = Number(size);
      }));
    }
    for (const [name, numbers] of found) {
      if (new Set(numbers).size < 2) continue;
      columns.packed["input " + name] = { numbers };
      columns.dimensions.push("input " + name);
    }
  }

  const sizeTitle = (name) => name.startsWith("input ") ? `${t("input")} ${name.slice(6).replace(".", `, ${t("dimension")} `)}` : titleOf(name);

  /** Returns what varies along the curves of a kernel type. */
  opatlas.variesTitle = (type, columns) => type.collective ? titleOf("message_bytes") : columns.has("sequences") ? t("keys of each sequence") : columns.has("m") ? "M" : t("tokens");

  opatlas.rowTips = (columns) => [[t("row"), (row) => columns.get("id", row)], [titleOf("duration_us"), (row) => number(columns.get("duration_us", row))],
    ["±", (row) => columns.get("interval", row) ? columns.get("interval", row).toPrecision(2) + " %" : ""]];

  /** Returns the points of a curve with their 90 % intervals. A rate is the less the longer the duration. */
  opatlas.curveOf = (columns, rows, what) => {
    const y = rows.map((row) => columns.get(what, row)), half = rows.map((row) => (columns.has("interval") && columns.get("interval", row) || 0) / 100);
    const least = y.map((value, i) => value * (1 - Math.min(half[i], 0.99))), most = y.map((value, i) => value * (1 + half[i]));
    return { rows, x: rows.map((row) => columns.get("varies", row)), y, low: what === "duration_us" ? least : y.map((value, i) => value / (1 + half[i])),
      high: what === "duration_us" ? most : y.map((value, i) => value / (1 - Math.min(half[i], 0.99))) };
  };

  /** Returns the words for a curve: its sizes that other curves have not, else its shapes. */
  opatlas.curveName = (columns, curve, row, several = []) => {
    if (columns.has("message_bytes")) return [columns.get("dtype", row), `${columns.get("num_devices", row)} ${t("devices")}`, ...several.filter((name) => name !== "dtype").map((name) => columns.get(name, row))].join(", ");
    const sizes = ["batch", "n", "k", "groups"].filter((name) => columns.has(name) && columns.counts(name).length > 1);
    const shapes = columns.has("n") ? sizes.map((name) => `${titleOf(name)} ${columns.get(name, row)}`).join(", ") : columns.curves[curve].name.replace(/;+$/, "").replaceAll(";", " × ");
    return [shapes, ...several.map((name) => columns.get(name, row))].join(", ");
  };

  /** Returns the curves of rows, those with colours first: of the implementation with the most rows, spread over the durations. */
  opatlas.curvesOf = (columns, rows, what) => {
    const found = new Map();
    for (const row of columns.has("curve") ? rows : []) {
      const curve = columns.get("curve", row);
      if (curve !== null && columns.get(what, row) > 0) found.set(curve, [...(found.get(curve) || []), row]);
    }
    const curves = [...found].map(([number, own]) => ({ number, ...opatlas.curveOf(columns, own.sort((i, j) => columns.get("varies", i) - columns.get("varies", j)), what) }))
      .filter((curve) => curve.x.length > 1);
    const last = (curve) => curve.y[curve.y.length - 1] / curve.x[curve.x.length - 1];
    const by = (curve) => columns.get("implementation", curve.rows[0]), order = columns.counts("implementation").map(([word]) => word);
    const first = order.find((word) => curves.some((curve) => by(curve) === word)), most = Math.max(...curves.map((curve) => curve.x.length));
    let wanted = curves.filter((curve) => curves.length <= COLOURED || (by(curve) === first && curve.x.length >= most * 0.6));
    wanted.sort((one, other) => last(other) - last(one));
    if (wanted.length > COLOURED) wanted = Array.from({ length: COLOURED }, (_, i) => wanted[Math.round(i * (wanted.length - 1) / (COLOURED - 1))]);
    const colours = [...opatlas.colours(wanted.map((curve) => curve.number)).values()];
    const several = ["dtype", "implementation"].filter((name) => new Set(wanted.map((curve) => columns.get(name, curve.rows[0]))).size > 1);
    wanted.forEach((curve, i) => Object.assign(curve, { colour: colours[i], name: opatlas.curveName(columns, curve.number, curve.rows[0], several) }));
    return [...wanted, ...curves.filter((curve) => !wanted.includes(curve))];
  };

  /** Returns the sizes at which most curves step up: the first rows of a new tile. */
  function stepsOf(curves) {
    const jumps = new Map();
    for (const { x, y, low, high } of curves) {
      // Steps within the intervals are noise.
      for (let i = 1; i < x.length; i++) if (x[i] / x[i - 1] <= BESIDE) jumps.set(x[i], [...(jumps.get(x[i]) || []), low[i] > high[i - 1] ? y[i] / y[i - 1] : 1]);
    }
    return [...jumps].filter(([, ratios]) => ratios.length > Math.min(2, curves.length - 1) && ratios.filter((ratio) => ratio > STEP).length >= ratios.length / 5).map(([x]) => x).sort((one, other) => one - other);
  }

  /** Makes the plots of a kernel type, and returns what draws rows in them. choose(words): filters by words. */
  opatlas.typePlots = ({ place, columns, type, overview, state, open, choose }) => {
    addDimensions(columns);
    const sizes = [...opatlas.sizesOf(columns), ...(columns.dimensions || [])];
    const rates = Object.keys(RATES).filter((each) => columns.has(each));
    const words = ["implementation", "dtype", "quality", "format", "cache", "topology_tier", "num_devices"].filter((each) => columns.has(each));
    if (!sizes.length || !rates.length) {
      place.replaceChildren(h("p", { class: "faint" }, t("nothing to plot")));
      return () => {};
    }
    const pick = (name, options, preferred) => [state.get(name), ...preferred, ...options].find((each) => options.includes(each));
    const several = words.filter((each) => columns.counts(each).length > 1);
    const views = columns.has("curve") ? ["curves", "single points"] : ["single points"];
    const chosen = {
      view: pick("view", views, state.has("x") || state.has("colour") ? ["single points"] : []),
      x: pick("x", sizes, type.collective ? ["message_bytes"] : ["m", "keys", "bytes"]),
      y: pick("y", rates, type.collective ? ["bus_gbps"] : ["duration_us"]),
      colour: pick("colour", words, [...(type.collective ? ["num_devices"] : []), ...several]),
    };
    const controls = h("div", { class: "controls" }), durations = h("div"), rooflines = h("div"), legend = h("div"), title = h("h2");
    const roof = type.each_byte_once ? roofOf(columns, overview) : null, tips = opatlas.rowTips(columns);
    let rows = [], scatter, roofline, colours;
    const choice = (name, title, options, word) => {
      const select = h("select", { name, onchange: () => { chosen[name] = select.value; state.set(name, select.value); opatlas.keep(state); make(); draw(rows); } },
        ...options.map((each) => h("option", { value: each }, word(each))));
      select.value = chosen[name];
      return options.length > 1 ? h("label", {}, t(title), select) : null;
    };
    const colourOf = (row) => colours.get(columns.get(chosen.colour, row)) || "#999999";

    function make() {
      const isPoints = chosen.view === "single points", names = [sizeTitle(chosen.x), titleOf(chosen.y)];
      controls.replaceChildren(...[choice("view", "plot", views, t), isPoints ? choice("x", "horizontal", sizes, sizeTitle) : null, choice("y", "vertical", rates, titleOf),
        isPoints && words.length ? choice("colour", "colour", words, (each) => SIZES[each] ? titleOf(each) : t(each)) : null].filter(Boolean));
      colours = opatlas.colours(columns.counts(chosen.colour).map(([word]) => word));
      title.textContent = isPoints ? t("plot") : `${titleOf(chosen.y)} / ${opatlas.variesTitle(type, columns)}`;
      scatter = isPoints ? new opatlas.Scatter({ place: durations, xTitle: names[0], yTitle: names[1], open, tips: [...tips,
        [names[0], (row) => number(columns.get(chosen.x, row))]], describe: `${type.name}: ${names[1]}, ${names[0]}` }) : null;
      if (isPoints) legend.replaceChildren(opatlas.legend(new Map([...colours].slice(0, 12))) || "");
      if (roof) roofline = new opatlas.Scatter({ place: rooflines, xTitle: roof.xTitle, yTitle: titleOf(roof.rate), lines: roof.lines, open, tips,
        describe: `${type.name}: ${t("roofline")}` });
    }

    function drawCurves() {
      const curves = opatlas.curvesOf(columns, rows, chosen.y), named = curves.filter((curve) => curve.colour);
      legend.replaceChildren(h("ul", { class: "legend" }, ...named.map((curve) => h("li", {}, h("button", { type: "button", title: t("only this curve"), onclick: () => choose(`curve=${curve.number}`) },
        h("span", { class: "swatch", style: `background:${curve.colour}` }), curve.name))),
        curves.length > named.length ? h("li", { class: "faint" }, `${t("grey")}: ${number(curves.length - named.length)} ${t("others; a filter shows them")}`) : null));
      const steps = chosen.y === "duration_us" ? stepsOf(curves) : [];
      opatlas.curves({ place: durations, curves, steps, xTitle: opatlas.variesTitle(type, columns), yTitle: titleOf(chosen.y), open, tips, describe: `${type.name}: ${titleOf(chosen.y)}` });
    }

    function draw(others) {
      rows = others;
      if (scatter) scatter.draw(rows.map((row) => ({ x: columns.get(chosen.x, row), y: columns.get(chosen.y, row), colour: colourOf(row), row })));
      else drawCurves();
      if (roof) roofline.draw(rows.map((row) => ({ x: roof.x(row), y: columns.get(roof.rate, row), colour: scatter ? colourOf(row) : opatlas.colours([0]).get(0), row })));
    }

    make();
    place.replaceChildren(controls, legend, h("div", { class: "split" }, h("section", {}, title, durations),
      roof ? h("section", {}, h("h2", {}, t(roof.title)), rooflines) : ""));
    return draw;
  };

  /** Returns the axes and lines of the roofline; of kernels without counted operations, those of the bandwidth. */
  function roofOf(columns, overview) {
    const [{ gbps, tera_ops: peaks }] = overview.databases;
    if (columns.has("tflops") && columns.has("gbps")) {
      const x = (row) => columns.get("tflops", row) / columns.get("gbps", row) * 1e3;
      const [low, high] = rangeOf(columns.length, x), lines = [];
      // Dtypes with the same peak share a line.
      const levels = new Map();
      for (const [word] of columns.counts("dtype")) if (Object.hasOwn(peaks, word)) levels.set(peaks[word], [...(levels.get(peaks[word]) || []), word]);
      const top = Math.max(0, ...levels.keys());
      const slope = gbps && gbps / 1e3;
      if (slope) {
        const end = top ? Math.min(high, top / slope) : high;
        lines.push({ x: [low, end], y: [low * slope, end * slope], at: [Math.sqrt(low * end) * 0.93, Math.sqrt(low * end) * slope], label: `${t("memory")}: ${number(gbps)} GB/s` });
      }
      for (const [level, words] of levels) {
        const begin = slope ? Math.max(low, level / slope) : low;
        if (begin < high) lines.push({ x: [begin, high], y: [level, level], at: [high, level], label: `${words.join(", ")}: ${number(level)}` });
      }
      return { title: "roofline", rate: "tflops", xTitle: t("operations per byte"), x, lines };
    }
    if (columns.has("gbps") && columns.has("bytes")) {
      const x = (row) => columns.get("duration_us", row) === null ? null : columns.get("bytes", row);
      const [low, high] = rangeOf(columns.length, x);
      const lines = gbps ? [{ x: [low, high], y: [gbps, gbps], at: [high, gbps], label: `${t("memory")}: ${number(gbps)} GB/s` }] : [];
      return { title: "memory bandwidth over bytes", rate: "gbps", xTitle: titleOf("bytes"), x, lines };
    }
    return null;
  }

})();
