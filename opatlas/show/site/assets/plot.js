"use strict";
/* Plots by Bokeh, which is loaded when the first plot is drawn: tables do not wait for it. */
(() => {
  const { element: h, number, t } = opatlas;
  /* Okabe and Ito, readable for colour-blind readers on both backgrounds. */
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a200", "#7f3c8d"];
  const MOST = 20000;

  const ready = () => opatlas.script("bokeh.min.js").then(() => opatlas.script("bokeh-api.min.js"));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Returns the colour of each word, and the words in their order. */
  opatlas.colours = (words) => {
    const first = document.documentElement.dataset.theme === "dark" ? [COLOURS[4], ...COLOURS.slice(1, 4), COLOURS[0]] : COLOURS.slice(0, 5);
    const all = [...first, ...COLOURS.slice(5)];
    return new Map(words.map((word, i) => [word, all[Math.min(i, all.length - 1)]]));
  };

  function figure(xTitle, yTitle, extra = {}) {
    const text = css("--text"), faint = css("--faint"), line = css("--line");
    const plot = Bokeh.Plotting.figure({ sizing_mode: "stretch_width", height: 420, x_axis_type: "log", y_axis_type: "log",
      tools: "pan,box_zoom,wheel_zoom,reset,save,tap", background_fill_color: null, border_fill_color: null,
      outline_line_color: line, x_axis_label: xTitle, y_axis_label: yTitle, ...extra });
    plot.toolbar.setv({ logo: null, autohide: true, stylesheets: ["@media print { :host { visibility: hidden; } }"] });
    for (const axis of [...plot.below, ...plot.left]) {
      axis.setv({ axis_label_text_color: text, axis_label_text_font_style: "normal", major_label_text_color: faint,
        axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: line });
    }
    for (const grid of plot.center) if ("grid_line_color" in grid) grid.grid_line_color = line, grid.grid_line_alpha = 0.6;
    return plot;
  }

  /**
   * A plot of points on logarithmic axes.
   * place: the element that it fills. describe: a sentence for readers who do not see it.
   * lines: [{x, y, label}]. open(row): called when a point is clicked. tips: [[title, function of row]].
   */
  opatlas.Scatter = class {
    constructor({ place, xTitle, yTitle, lines = [], open, tips, describe }) {
      Object.assign(this, { place, xTitle, yTitle, lines, open, tips });
      this.note = h("p", { class: "faint" });
      this.box = h("div", { class: "plot", role: "img", "aria-label": describe });
      place.replaceChildren(this.box, this.note);
    }

    /** Draws points {x, y, colour, row}; those without a place on the axes are left out. */
    async draw(points) {
      const kept = points.filter((point) => point.x > 0 && point.y > 0);
      // Evenly spread over the order of the rows.
      const every = Math.max(1, kept.length / MOST), shown = [];
      for (let i = 0; Math.floor(i) < kept.length; i += every) shown.push(kept[Math.floor(i)]);
      this.note.textContent = !kept.length ? t("nothing to plot") : shown.length < kept.length
        ? `${t("points")}: ${number(shown.length)} ${t("of")} ${number(kept.length)}; ${t("the filters show the others")}`
        : `${t("points")}: ${number(kept.length)}; ${t("each point is a row; a click opens it")}`;
      this.box.style.display = kept.length ? "" : "none";
      if (!kept.length) return;
      const data = { x: shown.map((p) => p.x), y: shown.map((p) => p.y), colour: shown.map((p) => p.colour), row: shown.map((p) => p.row) };
      this.tips.forEach(([, tell], i) => { data["tip" + i] = shown.map((p) => tell(p.row)); });
      if (this.source) {
        this.source.data = data;
        this.box.dataset.drawn = String(shown.length);
        return;
      }
      const wanted = this.wanted = {};
      await ready();
      if (this.wanted !== wanted || !this.box.isConnected) return;
      const plot = figure(this.xTitle, this.yTitle);
      this.source = new Bokeh.ColumnDataSource({ data });
      const glyph = plot.scatter({ field: "x" }, { field: "y" }, { source: this.source, size: 5, line_color: null,
        fill_color: { field: "colour" }, fill_alpha: 0.75, nonselection_fill_alpha: 0.75 });
      for (const line of this.lines) {
        const source = new Bokeh.ColumnDataSource({ data: { x: line.x, y: line.y } });
        plot.line({ field: "x" }, { field: "y" }, { source, line_color: css("--text"), line_width: 1.2 });
        plot.text({ value: line.at[0] }, { value: line.at[1] }, { value: line.label }, { text_color: css("--text"),
          text_font_size: { value: "11px" }, text_align: { value: line.align || "right" }, text_baseline: { value: "bottom" },
          source: new Bokeh.ColumnDataSource({ data: { i: [0] } }) });
      }
      plot.add_tools(new Bokeh.HoverTool({ renderers: [glyph], tooltips: this.tips.map(([title], i) => [title, "@tip" + i]) }));
      this.source.selected.properties.indices.change.connect(() => {
        const [first] = this.source.selected.indices;
        if (first !== undefined) this.open(this.source.data.row[first]);
      });
      this.box.replaceChildren();
      this.view = await Bokeh.Plotting.show(plot, this.box);
      this.box.dataset.drawn = String(shown.length);
    }
  };

  /**
   * Draws curves on logarithmic axes: those with a colour with the intervals of their points, the others thin and grey.
   * curves: [{x, y, low, high, rows, colour, predicted: {x, us, factor}, chosen: row}]; steps: sizes to mark; open, tips: as for a scatter.
   */
  opatlas.curves = async ({ place, curves, steps = [], xTitle, yTitle, open, tips, describe, height = 420 }) => {
    const box = h("div", { class: "plot", role: "img", "aria-label": describe, style: `min-height:${height}px` });
    place.replaceChildren(curves.length ? box : h("p", { class: "faint" }, t("nothing to plot")));
    if (!curves.length) return;
    await ready();
    if (!box.isConnected) return;
    const source = (data) => new Bokeh.ColumnDataSource({ data }), plot = figure(xTitle, yTitle, { height });
    const grey = curves.filter((each) => !each.colour), named = curves.filter((each) => each.colour);
    if (grey.length) plot.multi_line({ xs: { field: "xs" }, ys: { field: "ys" }, source: source({ xs: grey.map((each) => each.x), ys: grey.map((each) => each.y) }),
      line_color: css("--faint"), line_alpha: 0.22, line_width: 1 });
    for (const x of steps) plot.add_layout(new Bokeh.Span({ location: x, dimension: "height", line_color: css("--faint"), line_dash: [3, 4], line_width: 1, line_alpha: 0.7 }));
    for (const { x, y, low, high, colour, predicted } of named) {
      if (predicted) {
        const data = { x: predicted.x, y: predicted.us, low: predicted.us.map((us, i) => us / predicted.factor[i]), high: predicted.us.map((us, i) => us * predicted.factor[i]) };
        plot.varea({ x: { field: "x" }, y1: { field: "low" }, y2: { field: "high" }, source: source(data), fill_color: colour, fill_alpha: 0.18 });
        plot.line({ x: { field: "x" }, y: { field: "y" }, source: source(data), line_color: colour, line_width: 1.5 });
        plot.segment({ x0: { field: "x" }, y0: { field: "low" }, x1: { field: "x" }, y1: { field: "high" }, source: source({ x, low, high }), line_color: colour, line_alpha: 0.8 });
      } else {
        plot.varea({ x: { field: "x" }, y1: { field: "low" }, y2: { field: "high" }, source: source({ x, low, high }), fill_color: colour, fill_alpha: 0.16 });
        plot.line({ x: { field: "x" }, y: { field: "y" }, source: source({ x, y }), line_color: colour, line_width: 1.6 });
      }
    }
    const all = [...grey, ...named].flatMap((each) => each.rows.map((row, i) => ({ row, x: each.x[i], y: each.y[i], colour: each.colour || css("--faint"),
      alpha: each.colour ? 0.9 : 0.25, size: row === each.chosen ? 12 : each.colour ? 5 : 3 })));
    const points = source({ ...Object.fromEntries(["row", "x", "y", "colour", "alpha", "size"].map((name) => [name, all.map((each) => each[name])])),
      ...Object.fromEntries(tips.map(([, tell], i) => ["tip" + i, all.map((each) => tell(each.row))])) });
    const glyph = plot.scatter({ field: "x" }, { field: "y" }, { source: points, size: { field: "size" }, line_color: null, fill_color: { field: "colour" },
      fill_alpha: { field: "alpha" }, nonselection_fill_alpha: { field: "alpha" } });
    if (steps.length) {
      const top = Math.max(...all.map((each) => each.y));
      plot.text({ field: "x" }, { value: top }, { field: "word" }, { source: source({ x: steps, word: steps.map(number) }), text_color: css("--faint"),
        text_font_size: { value: "10px" }, angle: { value: Math.PI / 2 }, text_align: { value: "right" }, text_baseline: { value: "bottom" } });
    }
    plot.add_tools(new Bokeh.HoverTool({ renderers: [glyph], tooltips: tips.map(([title], i) => [title, "@tip" + i]) }));
    points.selected.properties.indices.change.connect(() => {
      const [first] = points.selected.indices;
      if (first !== undefined) open(points.data.row[first]);
    });
    await Bokeh.Plotting.show(plot, box);
    box.dataset.drawn = String(all.length);
  };

  /** Returns a list of what each colour stands for. */
  opatlas.legend = (colours) => colours.size < 2 ? null : h("ul", { class: "legend" }, ...[...colours].map(([word, colour]) =>
    h("li", {}, h("span", { class: "swatch", style: `background:${colour}` }), t(String(word)))));
})();
