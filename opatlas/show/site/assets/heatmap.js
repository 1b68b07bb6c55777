"use strict";
/* Heat maps of speed-ups: kernel types, and the shapes of one, by implementation. */
(() => {
  const { element: h, number, t } = opatlas;

  /** Returns a cell with a speed-up: the stronger in colour, the further from 1. */
  function cell(value, words, href, unsure) {
    if (value === null) return h("td", { class: "heat" });
    const strength = Math.min(1, Math.abs(Math.log2(value)) / 1.5), colour = value >= 1 ? "var(--faster)" : "var(--slower)";
    if (unsure) return h("td", { class: "heat faint", title: `${words}, AMBIGUOUS` }, value.toFixed(2));
    const text = value >= 0.995 && value < 10 ? value.toFixed(2) : value < 1 ? value.toFixed(2) : number(Math.round(value));
    return h("td", { class: "heat", title: words, style: `background:color-mix(in srgb, ${colour} ${Math.round(strength * 70)}%, transparent)` }, href ? h("a", { href }, text) : text);
  }

  const mean = (values) => values.length ? Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length) : null;

  /** rows: [{title, href, cells: [{value, words, href, unsure}]}], a cell for each of the columns; unsure: nothing says which is faster. */
  opatlas.heatmap = (corner, columns, rows) => h("div", { class: "scroll" }, h("table", { class: "heatmap" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, corner), ...columns.map((each) => h("th", { scope: "col", class: "number" }, each)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.href ? h("a", { href: row.href }, row.title) : row.title),
      ...row.cells.map((each) => each ? cell(each.value, each.words, each.href, each.unsure) : cell(null)))))));

  /** Returns the speed-ups of each rival by kernel type: the geometric mean over the rows that both measured. */
  opatlas.typeHeatmap = (found, hrefOf) => {
    const names = [...new Set(found.rivals.flatMap((rival) => rival.kernel_types.filter((each) => each.covered !== null).map((each) => each.kernel_type)))].sort();
    const rivals = found.rivals.filter((rival) => rival.kernel_types.some((each) => each.covered !== null));
    return names.length ? opatlas.heatmap(t("kernel type"), rivals.map((rival) => rival.label), names.map((name) => ({ title: name, href: hrefOf(name),
      cells: rivals.map((rival) => {
        const own = rival.kernel_types.find((each) => each.kernel_type === name);
        return own && own.covered !== null ? { value: own.covered, words: `${name}, ${rival.label}: ${own.covered.toFixed(2)}×, ${number(own.measured)} ${t("rows")}`, href: hrefOf(name) } : null;
      }) }))) : null;
  };

  /** Returns for each rival the speed-ups of a kernel type by weight and by what varies along its curve. */
  opatlas.shapeHeatmaps = (comparison, columns, type, name) => {
    const places = new Map();
    for (let row = 0; row < columns.length; row++) {
      const curve = columns.has("curve") ? columns.get("curve", row) : null;
      if (curve !== null && !places.has(columns.get("id", row))) places.set(columns.get("id", row), [columns.curves[curve].name, columns.get("varies", row), row]);
    }
    const found = new Map();
    for (let row = 0; row < comparison.length; row++) {
      const ratio = comparison.get("speed_up", row), place = places.get(comparison.get("id", row));
      if (comparison.get("kernel_type", row) !== name || !(ratio > 0) || !place) continue;
      const rival = found.get(comparison.get("rival", row)) || new Map(), [shape, size, own] = place;
      // Sizes beside a power of two are with it.
      const bucket = 2 ** Math.round(Math.log2(size)), of = rival.get(shape) || { row: own, sizes: new Map() };
      of.sizes.set(bucket, [...(of.sizes.get(bucket) || []), { ratio, unsure: comparison.get("verdict", row) === "AMBIGUOUS" }]);
      found.set(comparison.get("rival", row), rival.set(shape, of));
    }
    return [...found].map(([rival, shapes]) => {
      const buckets = [...new Set([...shapes.values()].flatMap((each) => [...each.sizes.keys()]))].sort((one, other) => one - other);
      const rows = [...shapes].map(([shape, each]) => ({ shape, each, all: mean([...each.sizes.values()].flat().map((one) => one.ratio)) })).sort((one, other) => other.all - one.all);
      return h("section", {}, h("h3", {}, rival),
        opatlas.heatmap(`${t("shape")} / ${opatlas.variesTitle(type, columns)}`, buckets.map(number), rows.map(({ shape, each }) => ({
          title: opatlas.curveName(columns, columns.get("curve", each.row), each.row), cells: buckets.map((bucket) => {
            // Of rows that tell which is faster, else of the others.
            const all = each.sizes.get(bucket), sure = (all || []).filter((one) => !one.unsure), value = all ? mean((sure.length ? sure : all).map((one) => one.ratio)) : null;
            return all ? { value, unsure: !sure.length, words: `${shape}, ${number(bucket)}: ${value.toFixed(2)}×, ${number(all.length)} ${t("rows")}` } : null;
          }) }))));
    });
  };

  opatlas.heatLegend = () => h("p", { class: "faint" }, t("speed-up over the baseline: blue is faster, orange slower, without a colour not certain"));
})();
