"use strict";
/* The step explorer: a step of a model as a timeline of its kernels, on a grid of batch, context, devices and stacks. */
(() => {
  const { element: h, number, t } = opatlas;
  const { typeLink, smallTable, facts, section } = opatlas.parts;
  const NAMES = ["batch", "context", "tp", "ep"];
  /* Far below, half way, and at the roof: apart for colour-blind readers, too. */
  const SCALE = [[0, [215, 48, 39]], [0.5, [254, 224, 144]], [1, [69, 117, 180]]];

  /** Returns the colour of a share of the roof, and that of words on it. */
  function colourOf(share) {
    if (share === null || share === undefined || share === "") return ["var(--unknown)", "var(--text)"];
    const at = Math.min(1, Math.max(0, share)), i = at < 0.5 ? 0 : 1, [[low, one], [high, other]] = [SCALE[i], SCALE[i + 1]];
    const mixed = one.map((value, j) => Math.round(value + (other[j] - value) * (at - low) / (high - low)));
    return [`rgb(${mixed.join(",")})`, at > 0.2 && at < 0.8 ? "#111" : "#fff"];
  }

  /** Returns the parts of a point, in the order of their first call. */
  function partsOf(answers, point) {
    return point.parts.map((i) => Object.fromEntries([...answers.names, "us"].map((name) => [name, name === "us" ? null : answers.get(name, i)])))
      .map((part) => ({ ...part, us: part.us_per_call === "" || part.us_per_call === null || part.us_per_call === undefined ? null : part.us_per_call * part.calls }));
  }

  const milliseconds = (us) => us >= 1e3 ? `${(us / 1e3).toPrecision(us < 1e4 ? 3 : 4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")} ms` : `${number(us)} µs`;
  const shareOf = (value) => value === null || value === undefined || value === "" ? t("not known") : `${(value * 100).toFixed(0)} %`;

  /** Returns a bar with a block for each part, as wide as its share of the time; those without a duration are marked. */
  opatlas.timeline = (answers, point, types) => {
    const parts = partsOf(answers, point), sum = parts.reduce((all, part) => all + (part.us || 0), 0);
    const blocks = parts.map((part) => {
      const [back, text] = part.us === null ? ["transparent", "var(--text)"] : colourOf(part.roofline), share = part.us === null ? 0.02 : part.us / sum;
      const words = [part.part, part.kernel_type, `${number(part.calls)} × ${part.us_per_call === null || part.us_per_call === "" ? t("missing") : `${number(part.us_per_call)} µs`}`,
        part.low ? `${t("90 % interval")} ${number(part.low)} – ${number(part.high)} µs` : "", `${t("share of the roof")} ${shareOf(part.roofline)}`,
        t(part.how) + (part.reason ? `: ${part.reason}` : ""), part.implementation].filter(Boolean).join("\n");
      return h(types.has(part.kernel_type) ? "a" : "span", { href: types.has(part.kernel_type) ? typeLink(part.kernel_type) : null, title: words, "aria-label": words,
        class: `block ${part.us === null ? "lacks" : part.how}`, style: `flex-grow:${share.toFixed(5)};background-color:${back};color:${text}` },
      share > 0.035 ? h("span", {}, part.part) : null, share > 0.05 && part.us !== null ? h("small", {}, `${(share * 100).toFixed(0)} %`) : null);
    });
    return h("div", { class: "timeline" }, ...blocks);
  };

  opatlas.timelineLegend = () => h("ul", { class: "legend" }, h("li", {}, `${t("share of the roof")}:`),
    ...[0.1, 0.3, 0.5, 0.7, 0.9].map((share) => h("li", {}, h("span", { class: "swatch", style: `background:${colourOf(share)[0]}` }), `${share * 100} %`)),
    h("li", {}, h("span", { class: "swatch", style: "background:var(--unknown)" }), t("not known")), h("li", { class: "faint" }, t("the width is the share of the time; a dashed edge: predicted")));

  /** Returns the words for the time of a point. There is no total where parts are missing. */
  opatlas.stepTotal = (answers, point) => {
    if (point.why) return [h("p", { class: "headline" }, t("does not run")), h("p", { class: "faint" }, point.why)];
    const missing = partsOf(answers, point).filter((part) => part.us === null);
    if (missing.length) return [h("p", { class: "headline" }, t("no total")), h("p", {}, `${t("parts without rows")}: ${[...new Set(missing.map((part) => `${part.part} (${part.kernel_type})`))].join(", ")}`)];
    return [h("p", { class: "headline" }, milliseconds(point.us), " ", h("span", { class: "faint" }, `${milliseconds(point.low)} – ${milliseconds(point.high)} (${t("90 % interval")}) · ${number(Math.round(point.tokens_per_s))} ${t("tokens/s")}`)),
      h("p", { class: "faint" }, point.sum < point.us ? `${t("kernels")} ${milliseconds(point.sum)}, ${t("gaps between them, and their place in the step")} ${milliseconds(point.us - point.sum)}`
        : t("sum: one kernel after another, no gaps between launches, nothing overlaps"))];
  };

  function partTable(answers, point, types) {
    const parts = partsOf(answers, point), sum = parts.reduce((all, part) => all + (part.us || 0), 0);
    const titles = ["part", "kernel type", "calls", "each", "90 % interval", "share", "share of the roof", "how known", "implementation"]
      .map((title, i) => ({ title, number: i > 1 && i < 7, unit: i === 3 || i === 4 ? "µs" : "" }));
    return smallTable(titles, parts.map((part) => [part.part, types.has(part.kernel_type) ? h("a", { href: typeLink(part.kernel_type) }, part.kernel_type) : part.kernel_type,
      number(part.calls), number(part.us === null ? null : part.us_per_call), part.low ? `${number(part.low)} – ${number(part.high)}` : "", part.us === null ? "" : `${(part.us / sum * 100).toFixed(1)} %`,
      part.roofline === null || part.roofline === "" ? "" : shareOf(part.roofline), t(part.how) + (part.reason ? `: ${part.reason}` : "") + (part.composed ? ` (${t("composition of operators")})` : ""), part.implementation]));
  }

  /** The steps of a model on a grid: divisions are pairs of tp and ep. */
  class Grid {
    constructor(packed) {
      Object.assign(this, packed, { answers: new opatlas.Columns(packed.answers) });
    }

    /** Returns the point of a choice of axes. */
    at(choice) {
      const { batch, context, division, stack } = this.axes;
      const own = [stack.indexOf(choice.stack), division.findIndex(([tp, ep]) => tp === choice.tp && ep === choice.ep), context.indexOf(choice.context), batch.indexOf(choice.batch)];
      const place = ((own[0] * division.length + own[1]) * context.length + own[2]) * batch.length + own[3];
      return own.includes(-1) ? { why: "" } : this.points[place];
    }
  }

  async function modelsPage(overview, name, state) {
    const listed = overview.models.find((each) => each.name === state.get("model")) || overview.models[0];
    if (!listed) return [h("h1", {}, t("there is no such page"))];
    const grid = new Grid(await opatlas.load(listed.file)), types = new Set(overview.types.map((each) => each.name)), { axes } = grid;
    const tps = [...new Set(axes.division.map(([tp]) => tp))], epsOf = (tp) => axes.division.filter(([own]) => own === tp).map(([, ep]) => ep);
    const options = { batch: axes.batch, context: axes.context, tp: tps, ep: [...new Set(axes.division.map(([, ep]) => ep))], stack: axes.stack };
    const choice = Object.fromEntries(Object.entries(options).map(([axis, all]) => {
      const wanted = axis === "stack" ? state.get(axis) : Number(state.get(axis));
      return [axis, all.includes(wanted) ? wanted : all.includes(listed.start[axis]) ? listed.start[axis] : all[0]];
    }));
    const asked = grid.asked[Number(state.get("asked")) - 1] || null;
    const place = h("div"), curves = h("div"), controls = h("div", { class: "controls sliders" });
    const keep = (axis, value) => {
      state.delete("asked");
      choice[axis] = value;
      if (!epsOf(choice.tp).includes(choice.ep)) choice.ep = axis === "ep" ? choice.ep : epsOf(choice.tp)[0];
      if (axis === "ep" && !epsOf(choice.tp).includes(choice.ep)) choice.tp = tps.find((tp) => epsOf(tp).includes(choice.ep));
      state.set("model", listed.name);
      for (const each of [...NAMES, "stack"]) state.set(each, choice[each]);
      opatlas.keep(state);
      draw(grid.at(choice));
    };
    const sliders = NAMES.filter((axis) => options[axis].length > 1).map((axis) => {
      const value = h("output", {}), all = options[axis];
      const input = h("input", { type: "range", name: axis, min: 0, max: all.length - 1, step: 1, oninput: () => keep(axis, all[Number(input.value)]) });
      const show = () => { input.value = all.indexOf(choice[axis]); input.setAttribute("aria-valuetext", String(choice[axis])); value.textContent = number(choice[axis]); };
      return { label: h("label", {}, h("span", {}, `${t(axis)} `, value), input), show };
    });
    const select = (axis, title, all, value, changed) => {
      const made = h("select", { name: axis, onchange: () => changed(made.value) }, ...all.map(([own, word]) => h("option", { value: own }, word)));
      made.value = value;
      return all.length > 1 ? h("label", {}, t(title), made) : null;
    };
    controls.append(...[
      select("model", "model", overview.models.map((each) => [each.name, each.name]), listed.name, (own) => { location.hash = "#/models?model=" + encodeURIComponent(own); }),
      ...sliders.map((each) => each.label),
      select("stack", "stack", axes.stack.map((own) => [own, t(own)]), choice.stack, (own) => keep("stack", own)),
    ].filter(Boolean));

    function draw(point) {
      for (const each of sliders) each.show();
      const lacks = point.why !== undefined;
      place.replaceChildren(...opatlas.stepTotal(grid.answers, point), ...(lacks ? [] : [opatlas.timeline(grid.answers, point, types), opatlas.timelineLegend(), section("parts", partTable(grid.answers, point, types))]));
      drawCurves();
    }

    /** Draws the time of a step over the batch for each division, the chosen point larger. */
    function drawCurves() {
      const shown = axes.division.map(([tp, ep]) => {
        const points = axes.batch.map((batch) => [batch, grid.at({ ...choice, tp, ep, batch })]).filter(([, point]) => point.us);
        return { name: `tp ${tp}` + (ep > 1 ? `, ep ${ep}` : ""), tp, ep, points };
      }).filter((each) => each.points.length > 1);
      if (!shown.length) return curves.replaceChildren();
      const places = shown.flatMap(({ tp, ep, points }) => points.map(([batch, point]) => ({ tp, ep, batch, point })));
      const colours = opatlas.colours(shown.map((each) => each.name)), box = h("div");
      const lines = shown.map((each) => {
        const own = each.points.map(([batch]) => places.findIndex((one) => one.batch === batch && one.tp === each.tp && one.ep === each.ep));
        return { x: each.points.map(([batch]) => batch), y: each.points.map(([, point]) => point.us / 1e3), low: each.points.map(([, point]) => point.low / 1e3), high: each.points.map(([, point]) => point.high / 1e3),
          rows: own, colour: colours.get(each.name), chosen: own.find((i) => places[i].batch === choice.batch && each.tp === choice.tp && each.ep === choice.ep) };
      });
      curves.replaceChildren(h("h2", {}, t("the same over the batch")), opatlas.legend(colours) || "", box);
      opatlas.curves({ place: box, curves: lines, xTitle: t("batch"), yTitle: `${t("a step")} (ms)`, height: 320, describe: t("the same over the batch"),
        open: (i) => { Object.assign(choice, { tp: places[i].tp, ep: places[i].ep }); keep("batch", places[i].batch); },
        tips: [[t("a step"), (i) => milliseconds(places[i].point.us)], [t("tokens/s"), (i) => number(Math.round(places[i].point.tokens_per_s))],
          ["tp, ep", (i) => `${places[i].tp}, ${places[i].ep}`], [t("batch"), (i) => number(places[i].batch)]] });
    }

    setTimeout(() => draw(asked || grid.at(choice)), 0);
    return [h("h1", {}, listed.name), h("p", { class: "faint" }, [`${t("decode")}, ${listed.dtype}`, `${number(listed.layers)} ${t("layers")}`, listed.device].join(" · ")),
      listed.differs.length ? h("p", {}, `${t("with differences")}: ${listed.differs.join("; ")}`) : null, controls,
      grid.asked.length ? h("p", {}, `${t("steps that were asked for")}: `, ...grid.asked.flatMap((each, i) => [h("a", { href: `#/models?model=${encodeURIComponent(listed.name)}&asked=${i + 1}` }, each.question), " "])) : null,
      place, curves];
  }

  opatlas.pages.models = modelsPage;
})();
