"use strict";
/* The pages: what stands behind # in the address says which, and keeps filters, sorting, axes and the chosen row. */
(() => {
  const { element: h, number, t } = opatlas;
  const { SIZES, RATES, titleOf, typeLink, rowLink, smallTable, facts, counted, section } = opatlas.parts;
  const main = document.getElementById("main");

  /* Columns of rows: title, unit, and how they are shown. Sizes are those that opatlas.query types. */
  const ROW_COLUMNS = [
    { name: "id", title: "row", long: true }, { name: "duration_us", title: "duration", unit: "µs" }, { name: "noise", title: "noise", unit: "%" },
    { name: "input_shapes", title: "input shapes", long: true }, { name: "output_shapes", title: "output shapes", long: true },
    { name: "dtype", title: "dtype" }, { name: "format", title: "format" },
    { name: "tflops", title: "arithmetic rate", unit: "10¹²/s" }, { name: "gbps", title: "bandwidth", unit: "GB/s" },
    { name: "bus_gbps", title: "bus bandwidth", unit: "GB/s" }, { name: "samples", title: "samples" },
    { name: "status", title: "status" }, { name: "quality", title: "quality" },
    { name: "verdict", title: "verdict" }, { name: "roofline", title: "roofline share", unit: "%" },
    { name: "lost_us", title: "time lost", unit: "µs" }, { name: "launches", title: "launches" }, { name: "implementation", title: "implementation" },
    { name: "origin", title: "source" }, { name: "device", title: "device" },
  ];
  const DETAILS = { reason: "reason", composed: "composition of operators", run_id: "run", cache: "cache", instrument: "instrument",
    median_us: "median duration", std_us: "standard deviation", machines: "machines", machine_spread: "spread of the machines",
    time_us: "time of all launches" };
  const FILTERS = [
    { name: "dtype", title: "dtype" }, { name: "format", title: "format" }, { name: "status", title: "status" },
    { name: "quality", title: "quality" }, { name: "verdict", title: "verdict" },
    { name: "composed", title: "composition of operators" }, { name: "implementation", title: "implementation" },
    { name: "origin", title: "source" }, { name: "device", title: "device" }, { name: "cache", title: "cache" }, { name: "instrument", title: "instrument" },
  ];
  /* Other columns of numbers are sizes. */
  const NO_SIZES = new Set([...ROW_COLUMNS.map((each) => each.name), ...Object.keys(DETAILS)]);
  const sizesOf = (columns) => columns.names.filter((each) => !NO_SIZES.has(each));

  let tables = [];
  addEventListener("beforeprint", () => tables.forEach((table) => table.forPaper(true)));
  addEventListener("afterprint", () => tables.forEach((table) => table.forPaper(false)));

  // Settings.

  const dark = matchMedia("(prefers-color-scheme: dark)");
  function applyTheme() {
    const wanted = opatlas.setting("theme") || "system";
    document.documentElement.dataset.theme = wanted === "system" ? (dark.matches ? "dark" : "light") : wanted;
  }

  function header(overview, place) {
    const link = (href, word) => h("a", { href, "aria-current": place === href ? "page" : null }, t(word));
    const choice = (name, title, options, current) => {
      const select = h("select", { name, "aria-label": t(title), onchange: () => {
        opatlas.setting(name, select.value);
        if (name === "language") opatlas.language = select.value;
        applyTheme();
        show();
      } }, ...options.map(([value, word]) => h("option", { value }, word)));
      select.value = current;
      return select;
    };
    const names = new Set(overview.pages);
    document.getElementById("header").replaceChildren(
      h("nav", { "aria-label": "OpAtlas" }, link("#/", "overview"),
        names.has("implementations") ? link("#/implementations", "implementations") : null,
        names.has("databases") ? link("#/databases", "comparison") : null,
        overview.types.some((each) => each.collective) ? link("#/collectives", "collectives") : null,
        overview.diagnosis ? link("#/diagnosis", "diagnosis") : null,
        overview.models.length ? link("#/models", "models") : null),
      h("div", { class: "settings" },
        choice("language", "language", [["en", "English"], ["zh", "中文"]], opatlas.language), " ",
        choice("theme", "theme", [["system", t("as the system")], ["light", t("light")], ["dark", t("dark")]], opatlas.setting("theme") || "system")));
    const skip = document.getElementById("skip");
    skip.textContent = t("skip to the contents");
    skip.href = location.hash || "#/";
    skip.onclick = (event) => { event.preventDefault(); main.focus(); };
  }

  // The overview.

  function sums(database, what) {
    const counts = new Map();
    for (const type of database.kernel_types) for (const [word, count] of Object.entries(type[what])) counts.set(word, (counts.get(word) || 0) + count);
    return counts;
  }

  function overviewPage(overview) {
    const [first] = overview.databases;
    const known = h("datalist", { id: "types" }, ...overview.types.map((each) => h("option", { value: each.name })));
    const search = h("input", { type: "search", name: "row", list: "types", "aria-label": t("find a row by its name") });
    const find = h("form", { class: "controls", onsubmit: (event) => {
      event.preventDefault();
      const text = search.value.trim();
      if (text) location.hash = "#/row/" + encodeURIComponent(text);
    } }, h("label", {}, t("find a row by its name"), search), known, h("button", {}, t("open")));
    const rows = overview.types.map((each) => [
      h("a", { href: typeLink(each.name) }, each.name), number(each.rows), number(each.timed), coverage(each),
      number(each.median_us), each.dtypes.join(", "), counted(each.quality), counted(each.status), each.implementations.join(", "),
    ]);
    const titles = ["kernel type", "rows", "with a duration", "coverage", "median", "dtypes", "quality", "status", "implementation"]
      .map((title, i) => ({ title, number: [1, 2, 4].includes(i) }));
    Object.assign(titles[4], { title: "median duration", unit: "µs" });
    return [
      h("h1", {}, first.folder || first.device || first.path),
      factsOf(first),
      problems(overview.problems),
      section("kernel types", find, smallTable(titles, rows)),
      ...overview.databases.slice(1).map((each) => h("section", {}, h("h2", {}, each.folder || each.path), factsOf(each))),
      h("p", { class: "faint" }, `${t("written by")} OpAtlas ${overview.version}`),
    ];
  }

  const factsOf = (each) => facts([
    ["database", each.path], ["device", each.device],
    ["durations", each.durations.map(([origin, device, by, rows]) => `${number(rows)} ${t(origin)}: ${[device || t("unknown"), by].filter(Boolean).join(", ")}`).join("; ")],
    ["runs", [number(each.runs), Object.entries(each.devices).map(([name, runs]) => `${name} (${number(runs)})`).join("; ")].filter(Boolean).join(": ")],
    ["newest run", each.last_run_at ? new Date(each.last_run_at * 1000).toISOString().slice(0, 10) : ""],
    ["quality", counted(sums(each, "quality"))], ["status", counted(sums(each, "status"))], ["cache", counted(sums(each, "cache"))],
    ["instrument", counted(sums(each, "instrument"))], ["shipped", each.shipped],
    ["peaks", each.gbps ? `${number(each.gbps)} GB/s; ${Object.entries(each.tera_ops).map(([name, rate]) => `${name} ${number(rate)}`).join(", ")} (10¹²/s)` : t("not known")],
    ["rows by number of machines", [...sums(each, "machines")].map(([machines, rows]) => `${machines}: ${number(rows)}`).join(", ")],
  ]);

  const coverage = ({ rows, timed }) => {
    const share = rows ? Math.floor((timed / rows) * 100) : 0;
    return h("span", {}, h("span", { class: "bar", style: `width:${share * 0.6}px` }), ` ${share} %`);
  };

  const problems = (texts) => texts.length ? section("problems", ...texts.map((text) => h("p", { class: "problem" }, text))) : null;

  // A kernel type.

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

  async function typePage(overview, name, state) {
    const type = overview.types.find((each) => each.name === name);
    if (!type) return [h("h1", {}, name), h("p", {}, t("there is no such page"))];
    const columns = new opatlas.Columns(await opatlas.load(type.file));
    const shown = [...ROW_COLUMNS.slice(0, 7), ...sizesOf(columns).map((each) => ({ name: each, title: SIZES[each] || each })), ...ROW_COLUMNS.slice(7)];
    const several = type.implementations.length > 1;
    const by = (row) => several ? columns.get("implementation", row) : "";
    shown[0] = { ...shown[0], link: (row) => rowLink(name, columns.get("id", row), by(row)), press: (row) => open(row) };
    const detail = h("div"), plots = h("div");
    let table;
    const open = (row) => {
      state.set("row", columns.get("id", row));
      if (several) state.set("by", by(row));
      keep(state);
      choose(row);
      detail.scrollIntoView({ block: "nearest" });
    };
    const choose = (row) => {
      table.choose(row);
      detail.replaceChildren(rowDetails(columns, row, rowLink(name, columns.get("id", row), by(row)), () => { state.delete("row"); state.delete("by"); keep(state); table.choose(-1); detail.replaceChildren(); }));
    };
    table = new opatlas.Table({ columns, shown, filters: FILTERS, searched: ["id", "input_shapes", "output_shapes"], state,
      changed: (rows, others) => { keep(state); if (others) draw(rows); } });
    tables = [table];
    const wanted = state.get("row");
    if (wanted) {
      const found = rowsNamed(columns, wanted, state.get("by"));
      if (found.length) choose(found[0]);
      else detail.replaceChildren(h("p", { class: "problem" }, `${t("no row has this name")}: ${wanted}`));
    }
    const draw = plotsOf(plots, columns, type, overview, state, open);
    // The table is there before the plots are drawn.
    setTimeout(() => draw(table.rows), 0);
    return [
      h("h1", {}, name),
      h("p", { class: "faint" }, `${t("rows")}: ${number(type.rows)}; ${t("with a duration")}: ${number(type.timed)}; ${counted(type.status)}`),
      h("p", { class: "faint" }, ["origin", "device"].map((each) => counted(new Map(columns.counts(each)))).filter(Boolean).join("; ")),
      detail, plots, section("table", table.element),
    ];
  }

  /** Returns the rows with an id, or else those whose ids begin with it. */
  function rowsNamed(columns, name, by) {
    const rows = Array.from({ length: columns.length }, (_, row) => row)
      .filter((row) => columns.get("id", row).startsWith(name) && (!by || columns.get("implementation", row) === by));
    const same = rows.filter((row) => columns.get("id", row) === name);
    return same.length ? same : rows;
  }

  function rowDetails(columns, row, link, close) {
    const id = columns.get("id", row), names = [...ROW_COLUMNS.slice(1), ...sizesOf(columns).map((name) => ({ name, title: SIZES[name] || name })),
      ...Object.entries(DETAILS).map(([name, title]) => ({ name, title, unit: name.endsWith("_us") ? "µs" : name === "machine_spread" ? "%" : "" }))];
    const cell = (each) => {
      const value = columns.get(each.name, row);
      return columns.isNumber(each.name) ? number(value) + (each.unit && value !== null ? " " + each.unit : "") : t(value);
    };
    return h("section", { class: "row", "aria-label": t("row") }, h("h2", {}, h("a", { href: link }, id)),
      facts(names.filter((each) => columns.has(each.name)).map((each) => [each.title, cell(each)])),
      adviceOn(columns.get("verdict", row)),
      h("p", {}, h("button", { type: "button", onclick: close }, t("close"))));
  }

  // The diagnosis.

  /** What to do for each verdict, and the APIs that do it. The texts on rules and APIs are English in both languages. */
  let verdicts = new Map();
  function learnVerdicts(overview) {
    verdicts = new Map((overview.diagnosis ? overview.diagnosis.verdicts : []).map((each) => [each.verdict, each]));
    for (const each of verdicts.values()) {
      opatlas.chinese[each.verdict] = opatlas.chinese[each.verdict] || each.zh;
      opatlas.chinese[each.advice.what] = each.advice.zh;
    }
  }

  function adviceOn(verdict) {
    const known = verdicts.get(verdict);
    return !known ? null : h("section", { class: "advice" }, h("p", {}, h("strong", {}, t(verdict)), ": ", t(known.advice.what)),
      facts([["rule", known.test], ["source", known.source], ...Object.entries(known.advice.apis)]));
  }

  function diagnosisPage(overview, state) {
    const { diagnosis } = overview;
    if (!diagnosis) return [h("h1", {}, t("there is no such page"))];
    const titles = ["verdict", "rows", "share of the time", "what to do first"].map((title, i) => ({ title, number: i === 1 || i === 2 }));
    const lines = diagnosis.verdicts.map((each) => [t(each.verdict), number(each.rows), `${(each.duration_us / diagnosis.time_us * 100).toFixed(1)} %`, t(each.advice.what)]);
    const columns = new opatlas.Columns(diagnosis.table), link = (row) => rowLink(columns.get("kernel_type", row), columns.get("id", row), columns.get("implementation", row));
    const shown = [{ name: "id", title: "row", long: true, link }, { name: "kernel_type", title: "kernel type" }, { name: "verdict", title: "verdict" },
      { name: "duration_us", title: "duration", unit: "µs" }, { name: "launches", title: "launches" }, { name: "time_us", title: "time of all launches", unit: "µs" },
      { name: "roofline", title: "roofline share", unit: "%" }, { name: "lost_us", title: "time lost", unit: "µs" },
      { name: "implementation", title: "implementation" }, { name: "origin", title: "source" }, { name: "device", title: "device" }];
    const table = new opatlas.Table({ columns, shown, searched: ["id", "kernel_type"], state, changed: () => keep(state),
      filters: ["verdict", "kernel_type", "implementation", "origin", "device"].map((each) => ({ name: each, title: shown.find((own) => own.name === each).title })) });
    tables = [table];
    return [
      h("h1", {}, t("diagnosis")),
      lines.length ? section("verdicts", smallTable(titles, lines)) : null,
      section("the most time lost", h("p", { class: "faint" }, t("ranked by the time lost; rows without known work or peaks by their whole time")),
        h("p", { class: "faint" }, `${t("time lost: duration × (1 − roofline share), of rows whose work and peaks are known")}: ${number(diagnosis.known)}; ${
          t("rows whose launches captures count")}: ${number(diagnosis.counted)}`), table.element),
    ];
  }

  /** Makes the plots of a kernel type, and returns what draws rows in them. */
  function plotsOf(place, columns, type, overview, state, open) {
    addDimensions(columns);
    const sizes = [...sizesOf(columns), ...(columns.dimensions || [])];
    const rates = Object.keys(RATES).filter((each) => columns.has(each));
    const words = ["implementation", "dtype", "quality", "format", "cache", "topology_tier", "num_devices"].filter((each) => columns.has(each));
    if (!sizes.length || !rates.length) {
      place.replaceChildren(h("p", { class: "faint" }, t("nothing to plot")));
      return () => {};
    }
    const pick = (name, options, preferred) => [state.get(name), ...preferred, ...options].find((each) => options.includes(each));
    const several = words.filter((each) => columns.counts(each).length > 1);
    const chosen = {
      x: pick("x", sizes, type.collective ? ["message_bytes"] : ["m", "keys", "bytes"]),
      y: pick("y", rates, type.collective ? ["bus_gbps"] : ["duration_us"]),
      colour: pick("colour", words, [...(type.collective ? ["num_devices"] : []), ...several]),
    };
    const durations = h("div"), rooflines = h("div"), legend = h("div");
    const redraw = { rows: [] };
    const choice = (name, title, options, word) => {
      const select = h("select", { name, onchange: () => { chosen[name] = select.value; state.set(name, select.value); keep(state); make(); draw(redraw.rows); } },
        ...options.map((each) => h("option", { value: each }, word(each))));
      select.value = chosen[name];
      return h("label", {}, t(title), select);
    };
    const controls = h("div", { class: "controls" }, choice("x", "horizontal", sizes, sizeTitle), choice("y", "vertical", rates, titleOf),
      words.length ? choice("colour", "colour", words, (each) => SIZES[each] ? titleOf(each) : t(each)) : null);
    const roof = type.each_byte_once ? roofOf(columns, overview) : null;
    const tips = [[t("row"), (row) => columns.get("id", row)], [titleOf("duration_us"), (row) => number(columns.get("duration_us", row))]];
    let scatter, roofline, colours;
    const colourOf = (row) => colours.get(columns.get(chosen.colour, row)) || "#999999";

    function make() {
      colours = opatlas.colours(columns.counts(chosen.colour).map(([word]) => word));
      legend.replaceChildren(opatlas.legend(new Map([...colours].slice(0, 12))) || "");
      const names = [sizeTitle(chosen.x), titleOf(chosen.y)];
      scatter = new opatlas.Scatter({ place: durations, xTitle: names[0], yTitle: names[1], open, tips: [...tips,
        [names[0], (row) => number(columns.get(chosen.x, row))]], describe: `${type.name}: ${names[1]}, ${names[0]}` });
      if (roof) roofline = new opatlas.Scatter({ place: rooflines, xTitle: roof.xTitle, yTitle: titleOf(roof.rate), lines: roof.lines, open, tips,
        describe: `${type.name}: ${t("roofline")}` });
    }

    function draw(rows) {
      redraw.rows = rows;
      scatter.draw(rows.map((row) => ({ x: columns.get(chosen.x, row), y: columns.get(chosen.y, row), colour: colourOf(row), row })));
      if (roof) roofline.draw(rows.map((row) => ({ x: roof.x(row), y: columns.get(roof.rate, row), colour: colourOf(row), row })));
    }

    make();
    place.replaceChildren(controls, legend, h("div", { class: "split" },
      h("section", {}, h("h2", {}, t("plot")), durations),
      roof ? h("section", {}, h("h2", {}, t(roof.title)), rooflines) : null));
    return draw;
  }

  /** Returns the least and the largest positive number that rows have. */
  function rangeOf(length, tell) {
    let low = Infinity, high = 0;
    for (let row = 0; row < length; row++) {
      const value = tell(row);
      if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    return [low, high];
  }

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

  // Implementations, and databases, side by side.

  async function comparisonPage(overview, name, state) {
    if (!overview.pages.includes(name)) return [h("h1", {}, t("there is no such page"))];
    const found = await opatlas.load(name), columns = new opatlas.Columns(found.table);
    const types = new Set(overview.types.map((each) => each.name));
    const linked = (type) => types.has(type) ? h("a", { href: typeLink(type) }, type) : type;
    const ratio = (value) => value === null ? "" : `${value >= 0.1 && value < 100 ? value.toFixed(2) : number(value)}×`;
    const titles = ["kernel type", "rows", "measured", "failed", "unsupported", "missing", "covered", "deployed", "verdict"]
      .map((title, i) => ({ title, number: i > 0 && i < 8 }));
    const line = (each, label) => [label, number(each.rows), number(each.measured), number(each.wrong + each.crashed), number(each.unsupported),
      number(each.missing), ratio(each.covered), ratio(each.deployed), counted(each.verdicts)];
    const shown = [{ name: "id", title: "row", long: true, link: (row) => types.has(columns.get("kernel_type", row))
      ? rowLink(columns.get("kernel_type", row), columns.get("id", row)) : null },
      { name: "kernel_type", title: "kernel type" }, { name: "rival", title: "rival" },
      { name: "baseline_us", title: "baseline", unit: "µs" }, { name: "rival_us", title: "rival", unit: "µs" },
      { name: "speed_up", title: "speed-up" }, { name: "verdict", title: "verdict", tone: true },
      { name: "baseline_status", title: "baseline's status" }, { name: "status", title: "status" }, { name: "reason", title: "reason", long: true }];
    if (!state.has("sort")) state.set("sort", "speed_up");
    const place = h("div"), [shortest, longest] = rangeOf(columns.length, (row) => columns.get("baseline_us", row));
    const tones = opatlas.colours(columns.counts("verdict").map(([word]) => word));
    const scatter = new opatlas.Scatter({ place, xTitle: `${t("baseline")} (µs)`, yTitle: t("speed-up"), describe: t("rows side by side"),
      lines: longest > 0 ? [{ x: [shortest, longest], y: [1, 1], at: [longest, 1], label: "1×" }] : [],
      open: (row) => { location.hash = rowLink(columns.get("kernel_type", row), columns.get("id", row)); },
      tips: [[t("row"), (row) => columns.get("id", row)], [t("rival"), (row) => columns.get("rival", row)], [t("speed-up"), (row) => number(columns.get("speed_up", row))]] });
    const draw = (rows) => scatter.draw(rows.map((row) => ({ x: columns.get("baseline_us", row), y: columns.get("speed_up", row),
      colour: tones.get(columns.get("verdict", row)), row })));
    const table = new opatlas.Table({ columns, shown, searched: ["id", "kernel_type", "reason"], state,
      filters: ["rival", "kernel_type", "verdict", "baseline_status", "status"].map((each) => ({ name: each, title: shown.find((own) => own.name === each).title })),
      changed: (rows, others) => { keep(state); if (others) draw(rows); } });
    tables = [table];
    setTimeout(() => draw(table.rows), 0);
    return [
      h("h1", {}, t(name === "implementations" ? "implementations" : "comparison")),
      facts([["baseline", `${found.baseline.label}: ${found.baseline.path}`], ["fastest", counted(Object.fromEntries(
        Object.entries(found.fastest).map(([word, count]) => [word || "open", count])))]]),
      problems(found.problems),
      ...found.rivals.map((rival) => h("section", {}, h("h2", {}, rival.label), h("p", { class: "faint" }, rival.path),
        smallTable(titles, [line(rival.all, t("total")), ...rival.kernel_types.map((each) => line(each, linked(each.kernel_type)))]))),
      h("p", { class: "faint" }, t("covered: geometric mean of the speed-ups over rows that are FAST, SLOW or SAME; deployed: with 1 for rows that the rival did not measure")),
      section("rows side by side", opatlas.legend(tones) || "", place, table.element),
    ];
  }

  // Routes.

  let address = "";
  /** Keeps filters in the address, so that a link shows the same; without a step in the history for each key. */
  function keep(state) {
    const text = state.toString();
    address = location.hash.split("?")[0] + (text ? "?" + text : "");
    history.replaceState(null, "", address);
  }

  function rowPage(overview, id) {
    const types = overview.types.filter((each) => id === each.name || id.startsWith(each.name + "-"));
    const type = types.sort((one, other) => other.name.length - one.name.length)[0];
    if (!type) return [h("h1", {}, id), h("p", { class: "problem" }, t("no row has this name"))];
    location.replace(id === type.name ? typeLink(id) : rowLink(type.name, id));
    return [];
  }

  /** Returns what a part of the address says; the part itself if it is none that a page wrote. */
  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch (error) {
      return text;
    }
  }

  let latest = 0;
  async function show() {
    const own = ++latest;
    document.documentElement.lang = opatlas.language === "zh" ? "zh-CN" : "en";
    const overview = await opatlas.load("overview");
    const [path, query] = location.hash.split(/\?(.*)/s);
    const [, kind = "", ...rest] = path.replace(/^#/, "").split("/");
    const name = decoded(rest.join("/")), state = new URLSearchParams(query || "");
    address = location.hash;
    learnVerdicts(overview);
    header(overview, path || "#/");
    tables = [];
    if (!main.childElementCount) main.replaceChildren(h("p", { role: "status" }, t("loading")));
    const content = kind === "" ? overviewPage(overview)
      : kind === "type" ? await typePage(overview, name, state)
      : kind === "row" ? rowPage(overview, name)
      : kind === "implementations" || kind === "databases" ? await comparisonPage(overview, kind, state)
      : kind === "collectives" ? await opatlas.pages.collectives(overview)
      : kind === "models" ? opatlas.pages.models(overview)
      : kind === "diagnosis" ? diagnosisPage(overview, state)
      : [h("h1", {}, t("there is no such page"))];
    if (own !== latest) return;
    main.replaceChildren(...content.filter(Boolean));
    document.title = (main.querySelector("h1") || {}).textContent + " · OpAtlas";
    main.dataset.page = path || "#/";
    main.dataset.ready = String(performance.now());
    const chosen = main.querySelector(".row");
    scrollTo(0, chosen ? chosen.offsetTop - 10 : 0);
  }

  const fail = (error) => main.replaceChildren(h("p", { class: "problem" }, String(error)));
  addEventListener("hashchange", () => { if (location.hash !== address) show().catch(fail); });
  dark.addEventListener("change", () => { applyTheme(); show().catch(fail); });
  applyTheme();
  show().catch(fail);
})();
