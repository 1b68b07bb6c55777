"use strict";
/* Data, elements and numbers. Data come as scripts, since a page from a file may read nothing else. */
(() => {
  const waiting = new Map(), there = new Map();

  /** Called by the scripts in data/. */
  opatlas.receive = (name, text) => there.set(name, JSON.parse(text));

  /** Returns a promise of the data of a name. */
  opatlas.load = (name) => {
    if (!waiting.has(name)) {
      waiting.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = "data/" + name + ".js";
        script.onload = () => { script.remove(); resolve(there.get(name)); };
        script.onerror = () => reject(new Error("data/" + name + ".js"));
        document.head.append(script);
      }));
    }
    return waiting.get(name);
  };

  /** Returns a promise that a script has run. */
  opatlas.script = (file) => {
    if (!waiting.has(file)) {
      waiting.set(file, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = file;
        script.onload = resolve;
        script.onerror = () => reject(new Error(file));
        document.head.append(script);
      }));
    }
    return waiting.get(file);
  };

  /** Returns an element. Texts become text nodes: nothing of a database is ever read as HTML. */
  opatlas.element = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) value && element.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== false && value !== null) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  };

  /** Returns a number for a reader: 4 digits, and all digits before the point, with thousands apart. */
  opatlas.number = (value) => {
    if (value === null || value === undefined) return "";
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size >= 1e-4 && size < 1e15) return value.toLocaleString("en", size < 1e3 ? { maximumSignificantDigits: 4 } : { maximumFractionDigits: 0 });
    return value.toExponential(3);
  };

  /** The columns of a table, in arrays of equal length; what is known of its curves, and the histories of rows. */
  opatlas.Columns = class {
    constructor(packed) {
      Object.assign(this, { length: packed.rows, curves: packed.curves || [], history: packed.history || {} });
      this.names = Object.keys(packed.columns);
      this.packed = packed.columns;
    }

    has(name) { return Object.hasOwn(this.packed, name); }

    isNumber(name) { return this.has(name) && "numbers" in this.packed[name]; }

    /** Returns a cell: a number or null, or a text. */
    get(name, row) {
      if (!this.has(name)) return "";
      const column = this.packed[name];
      if (column.numbers) return column.numbers[row];
      return column.words ? column.words[row] : column.of[column.codes[row]];
    }

    /** Returns the cell that all rows have; null if they differ, or have no such column. */
    common(name) {
      if (!this.has(name) || !this.length) return null;
      const first = this.get(name, 0);
      for (let row = 1; row < this.length; row++) if (this.get(name, row) !== first) return null;
      return first;
    }

    /** Returns the texts of a column and how often each occurs, the most frequent first. */
    counts(name) {
      const counts = new Map();
      for (let row = 0; row < this.length; row++) {
        const word = this.get(name, row);
        if (word !== "" && word !== null) counts.set(word, (counts.get(word) || 0) + 1);
      }
      return [...counts].sort((one, other) => other[1] - one[1]);
    }
  };
})();
