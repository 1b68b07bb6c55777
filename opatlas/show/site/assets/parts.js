"use strict";
/* Parts of pages: titles of sizes, links, small tables, facts, sections, small drawings. */
(() => {
  const { element: h, number, t } = opatlas;

  /* Titles of sizes. Other columns of numbers are sizes, too, under their own names. */
  const SIZES = Object.assign(Object.create(null), {
    message_bytes: "bytes of the message", num_devices: "devices", topology_tier: "tier", batch: "batch", m: "M", n: "N", k: "K", groups: "groups",
    sequences: "sequences", queries: "queries", keys: "keys", pairs: "pairs", heads: "heads", kv_heads: "KV heads",
    head_size: "head size", pages: "pages", bytes: "bytes",
  });
  const RATES = Object.assign(Object.create(null), { duration_us: "duration (µs)", tflops: "arithmetic rate (10¹²/s)", gbps: "bandwidth (GB/s)", bus_gbps: "bus bandwidth (GB/s)" });
  const titleOf = (name) => {
    const [, word, unit] = /^(.*?)( \(.*\))?$/.exec(RATES[name] || SIZES[name] || name);
    return t(word) + (unit || "");
  };

  const typeLink = (name) => "#/type/" + encodeURIComponent(name);
  /* Of several implementations with the row, by: the one that is meant. */
  const rowLink = (type, id, by = "") => `${typeLink(type)}?row=${encodeURIComponent(id)}${by && "&by=" + encodeURIComponent(by)}`;

  function smallTable(titles, rows) {
    const kinds = titles.map((title) => title.number ? "number" : title.sentences ? "sentences" : null);
    return h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ...titles.map((each, i) => h("th", { scope: "col", class: kinds[i] }, t(each.title) + (each.unit ? ` (${each.unit})` : ""))))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: kinds[i] }, cell)))))));
  }

  const facts = (pairs) => h("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [h("dt", {}, t(name)), h("dd", {}, value)]));
  /* Counts by word: an object of a file, or a Map of sums over words of a database. */
  const counted = (counts) => (counts instanceof Map ? [...counts] : Object.entries(counts)).sort((one, other) => other[1] - one[1])
    .map(([word, count]) => `${t(word || "never run")} ${number(count)}`).join(", ");
  const section = (title, ...children) => h("section", {}, h("h2", {}, t(title)), ...children);

  const problems = (texts) => texts.length ? section("problems", ...texts.map((text) => h("p", { class: "problem" }, text))) : null;

  /** Returns the least and the largest positive number that rows have. */
  function rangeOf(length, tell) {
    let low = Infinity, high = 0;
    for (let row = 0; row < length; row++) {
      const value = tell(row);
      if (value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    return [low, high];
  }

  /** Returns an element of a drawing. */
  function svg(tag, properties, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /** Returns a line of numbers, the newest with a point; its words tell the numbers. */
  function sparkline(values, words) {
    // Noise of less than some percent is a flat line.
    const least = Math.min(...values), most = Math.max(...values), spare = Math.max(0, most * 0.08 - (most - least)) / 2;
    const low = least - spare, high = most + spare, width = 84, height = 20;
    const x = (i) => 3 + (values.length > 1 ? i / (values.length - 1) : 0) * (width - 6);
    const y = (value) => height - 4 - (high > low ? (value - low) / (high - low) : 0.5) * (height - 8);
    const line = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "), last = values.length - 1;
    return svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
      svg("title", {}, words), svg("polyline", { points: line }), svg("circle", { cx: x(last), cy: y(values[last]), r: 2.4 }));
  }

  /** Returns the day of a run by its id, 20261121T163006-1f0c9a. */
  const dayOf = (run) => /^\d{8}T/.test(run) ? `${run.slice(0, 4)}-${run.slice(4, 6)}-${run.slice(6, 8)}` : run;

  opatlas.parts = { SIZES, RATES, titleOf, typeLink, rowLink, smallTable, facts, counted, section, problems, rangeOf, svg, sparkline, dayOf };
  /* By the first part of the address. Each returns what the page has, from the overview, the rest of the address and the state. */
  opatlas.pages = Object.create(null);
})();
