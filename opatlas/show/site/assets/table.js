"use strict";
/* A table of many rows: filters, sorting, pages. Only the rows of the page are in the document. */
(() => {
  const { element: h, number, t } = opatlas;
  const PAGE = 100, MOST_PRINTED = 5000, MOST_WORDS = 60;
  const CONDITION = /^([a-z_]+)(>=|<=|!=|=|>|<)(.+)$/;

  /* The tables of the page. */
  opatlas.tables = [];
  addEventListener("beforeprint", () => opatlas.tables.forEach((table) => table.forPaper(true)));
  addEventListener("afterprint", () => opatlas.tables.forEach((table) => table.forPaper(false)));

  opatlas.Table = class {
    /**
     * columns: opatlas.Columns.
     * shown: [{name, title, unit, long, link(row), press(row), tip(row), tone}] in their order; press: instead of following
     * the link.
     * filters: names of columns of words with a choice each.
     * state: the filters, sorting and chosen row as URLSearchParams, which this table changes.
     * changed(rows, others): called with the positions of the rows that match, and whether they are others than before.
     */
    constructor({ columns, shown, filters, searched, state, changed }) {
      Object.assign(this, { columns, state, changed, searched });
      this.shown = shown.filter((each) => columns.has(each.name));
      this.filters = filters.filter((each) => columns.has(each.name))
        .map((each) => ({ ...each, counts: columns.counts(each.name) }))
        .filter(({ name, counts }) => state.has(name) || counts.length > 1 || (counts.length === 1 && counts[0][1] < columns.length));
      this.page = 0;
      this.size = PAGE;
      this.chosen = -1;
      this.body = h("tbody");
      this.status = h("span", { role: "status", "aria-live": "polite" });
      this.element = h("section", { class: "table", "aria-label": t("table") },
        this.makeControls(), h("div", { class: "scroll" }, h("table", {}, this.makeHead(), this.body)), this.makePager());
      this.apply();
      opatlas.tables.push(this);
    }

    makeControls() {
      let waits;
      const search = h("input", { type: "search", value: this.state.get("q") || "", placeholder: t("such as 7168 m>=128"),
        oninput: () => { clearTimeout(waits); waits = setTimeout(() => this.set("q", search.value.trim()), 150); } });
      this.inputs = [search];
      const controls = [h("label", {}, t("shape or size"), search)];
      for (const { name, title, counts } of this.filters) {
        const select = h("select", { name, onchange: () => this.set(name, select.value) }, h("option", { value: "" }, t("all")),
          ...counts.slice(0, MOST_WORDS).map(([word, count]) => h("option", { value: word }, `${t(String(word))} (${number(count)})`)));
        select.value = this.state.get(name) || "";
        this.inputs.push(select);
        controls.push(h("label", {}, t(title), select));
      }
      controls.push(h("button", { type: "button", onclick: () => this.clear() }, t("no filters")));
      return h("div", { class: "controls" }, ...controls);
    }

    /** Shows the rows that have some words. */
    search(words) {
      this.inputs[0].value = words;
      this.set("q", words);
    }

    clear() {
      for (const input of this.inputs) input.value = "";
      for (const name of ["q", ...this.filters.map((each) => each.name)]) this.state.delete(name);
      this.apply();
      this.changed(this.rows, true);
    }

    makeHead() {
      this.heads = this.shown.map((each) => {
        const number = this.columns.isNumber(each.name) ? "number" : "";
        const label = h("span", {}, t(each.title) + (each.unit ? ` (${each.unit})` : ""));
        const sign = h("span", { "aria-hidden": "true" });
        const head = h("th", { scope: "col", class: number },
          h("button", { type: "button", "data-sort": each.name, onclick: () => this.sortBy(each.name) }, label, sign));
        return { head, sign, name: each.name };
      });
      return h("thead", {}, h("tr", {}, ...this.heads.map((each) => each.head)));
    }

    makePager() {
      const step = (word, to) => h("button", { type: "button", onclick: () => { this.page = to(); this.draw(); } }, t(word));
      this.last = () => Math.max(Math.ceil(this.rows.length / this.size) - 1, 0);
      this.back = [step("first", () => 0), step("previous", () => this.page - 1)];
      this.forth = [step("next", () => this.page + 1), step("last", () => this.last())];
      return h("div", { class: "pager" }, ...this.back, ...this.forth, this.status);
    }

    set(name, value) {
      if (value) this.state.set(name, value); else this.state.delete(name);
      this.apply();
      this.changed(this.rows, name !== "sort");
    }

    sortBy(name) {
      const now = this.state.get("sort");
      // A third press gives the order of the file again.
      this.set("sort", now === name ? "-" + name : now === "-" + name ? "" : name);
    }

    apply() {
      const { columns } = this, tests = this.tests(), kept = [];
      for (let row = 0; row < columns.length; row++) if (tests.every((test) => test(row))) kept.push(row);
      const sort = this.state.get("sort") || "", name = sort.replace(/^-/, ""), down = sort.startsWith("-");
      if (columns.has(name)) {
        const sign = down ? -1 : 1, words = new Intl.Collator("en", { numeric: true });
        const compare = columns.isNumber(name)
          ? (one, other) => sign * (one - other) : (one, other) => sign * words.compare(one, other);
        const key = kept.map((row) => columns.get(name, row));
        const order = key.map((_, i) => i).sort((i, j) => {
          // Empty cells are last in both orders.
          const one = key[i], other = key[j], empty = (one === null || one === "") - (other === null || other === "");
          return empty || (one === null || one === "" ? 0 : compare(one, other)) || i - j;
        });
        this.rows = order.map((i) => kept[i]);
      } else this.rows = kept;
      for (const each of this.heads) {
        const own = each.name === name;
        each.head.setAttribute("aria-sort", own ? (down ? "descending" : "ascending") : "none");
        each.sign.textContent = own ? (down ? " ▼" : " ▲") : "";
      }
      this.page = 0;
      this.draw();
    }

    /** Returns functions that a row must pass. Words of the search are parts of names and shapes, or m>=128. */
    tests() {
      const { columns, state } = this, tests = [];
      for (const { name } of this.filters) {
        const wanted = state.get(name);
        if (wanted) tests.push((row) => String(columns.get(name, row)) === wanted);
      }
      for (const word of (state.get("q") || "").split(/\s+/).filter(Boolean)) {
        const [, name, sign, value] = CONDITION.exec(word) || [];
        if (name && columns.has(name)) {
          const limit = columns.isNumber(name) ? Number(value) : value;
          const compare = { ">=": (a) => a >= limit, "<=": (a) => a <= limit, ">": (a) => a > limit, "<": (a) => a < limit,
            "=": (a) => a === limit, "!=": (a) => a !== limit }[sign];
          tests.push((row) => { const cell = columns.get(name, row); return cell !== null && compare(cell); });
        } else {
          const wanted = word.toLowerCase();
          tests.push((row) => this.searched.some((each) => String(columns.get(each, row)).toLowerCase().includes(wanted)));
        }
      }
      return tests;
    }

    /** Shows the page with a row, and marks the row. Returns whether the row matches the filters. */
    choose(row) {
      this.chosen = row;
      const place = this.rows.indexOf(row);
      if (place >= 0) this.page = Math.floor(place / this.size);
      this.draw();
      return place >= 0;
    }

    draw() {
      const begin = this.page * this.size, rows = this.rows.slice(begin, begin + this.size);
      this.body.replaceChildren(...rows.map((row) => this.makeRow(row)));
      for (const button of this.back) button.disabled = this.page <= 0;
      for (const button of this.forth) button.disabled = this.page >= this.last();
      const range = rows.length ? `${number(begin + 1)}–${number(begin + rows.length)} ${t("of")} ` : "";
      this.status.textContent = `${t("rows that match")}: ${range}${number(this.rows.length)} (${t("all")}: ${number(this.columns.length)})`;
    }

    makeRow(row) {
      const cells = this.shown.map((each) => {
        const value = this.columns.get(each.name, row), isNumber = this.columns.isNumber(each.name);
        const text = isNumber ? each.digits && value ? String(Number(value.toPrecision(each.digits))) : number(value) : t(value);
        const link = each.link && text && each.link(row);
        const tone = each.tone ? " " + value : "";
        return h("td", { class: (isNumber ? "number" : each.long ? "long" : "") + tone, title: each.tip ? each.tip(row) : each.long ? text : null },
          link ? h("a", { href: link, onclick: each.press && ((event) => this.press(event, each, row)) }, text) : text);
      });
      return h("tr", { class: row === this.chosen ? "chosen" : null }, ...cells);
    }

    press(event, column, row) {
      // With these keys a browser opens the link elsewhere.
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      column.press(row);
    }

    /** Shows all rows for paper, as far as a printer may take them, and the page again. */
    forPaper(begins) {
      this.size = begins ? MOST_PRINTED : PAGE;
      this.page = 0;
      this.draw();
    }
  };
})();
