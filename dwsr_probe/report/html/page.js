// The page: theme, tables, and the data of the plots for the range in view. Names from the job only
// ever become text, never markup.
"use strict";
(() => {
  const root = document.documentElement, GROUPS = 7, PROCESS_COLOURS = 5;
  const css = name => getComputedStyle(root).getPropertyValue(name).trim();

  // -- theme: the system's, until the switch says otherwise

  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const repaint = [];
  function theme() {
    root.dataset.theme = chosen ?? (system.matches ? "dark" : "light");
    for (const paint of repaint) paint();
  }
  system.addEventListener("change", theme);
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    theme();
  });
  theme();

  // -- tables

  function sortBy(table, column) {
    // The first click sorts numbers downwards and texts upwards; each further click reverses.
    const head = table.tHead.rows[0].cells[column], sorted = head.getAttribute("aria-sort");
    const down = sorted === "ascending" || (sorted !== "descending" && head.className === "n");
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => {
      const cell = row.cells[column];
      return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
    };
    const order = (a, b) => typeof a === "string" || typeof b === "string"
      ? String(a).localeCompare(String(b)) : a - b;
    const rows = [...table.tBodies[0].rows].map(row => ({row, key: value(row)}));
    rows.sort((a, b) => down ? order(b.key, a.key) : order(a.key, b.key));
    table.tBodies[0].append(...rows.map(({row}) => row));
  }
  for (const table of document.querySelectorAll("table.sortable"))
    [...table.tHead.rows[0].cells].forEach((cell, i) =>
      cell.firstChild.addEventListener("click", () => sortBy(table, i)));
  const search = document.getElementById("search"), names = document.getElementById("names");
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    for (const row of names.tBodies[0].rows)
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  });

  // -- the packed data: 8 bytes of length, JSON, arrays

  async function unpack(element) {
    const text = atob(document.getElementById(element).textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const whole = await new Response(stream).arrayBuffer();
    const length = Number(new DataView(whole).getBigUint64(0, true));
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 8, length)));
    const arrays = {};
    for (const [name, [type, offset, size]] of Object.entries(head.arrays))
      arrays[name] = new globalThis[type](whole, 8 + length + offset, size);
    return [head, arrays];
  }

  // -- plots

  function colors() { return Array.from({length: GROUPS}, (_, i) => css(`--g${i}`)); }
  function sourcesOf(plots) {
    const sources = plots.flatMap(plot => plot.renderers).map(renderer => renderer.data_source);
    return new Map(sources.map(source => [source.name, source]));
  }

  function paintPlot(plot) {
    const soft = css("--soft"), rule = css("--rule"), shades = colors();
    for (const axis of [...plot.left, ...plot.below]) axis.setv({
      major_label_text_color: soft,
      axis_label_text_color: soft,
      axis_line_color: axis.axis_line_color && rule,
      major_tick_line_color: axis.major_tick_line_color && rule,
    });
    for (const lines of plot.center) if ("grid_line_color" in lines) {
      const shown = lines.dimension === 1 && plot.name !== "spans";
      lines.grid_line_color = shown ? css("--grid") : null;
    }
    const accent = css("--accent");
    for (const tool of plot.toolbar.tools) if (tool.type === "BoxZoomTool") tool.overlay.setv({
      fill_color: accent, fill_alpha: 0.12, line_color: accent, line_width: 1, line_dash: [],
    });
    for (const renderer of plot.renderers) {
      const [, kind, number] = /^([a-z-]+)(\d+)$/.exec(renderer.name ?? "") ?? [];
      const main = {value: css(`--p${Math.min(number ?? 0, PROCESS_COLOURS)}`)};
      if (kind === "group")
        renderer.glyph.setv({fill_color: {value: shades[number]}, fill_alpha: {value: 0.85}});
      if (kind === "line")
        renderer.glyph.setv(
          {line_color: main, line_alpha: {value: number < PROCESS_COLOURS ? 1 : 0.7}});
      if (kind === "band") renderer.glyph.fill_color = main;
      if (kind === "curve-band") renderer.glyph.fill_color = {value: soft};
      if (kind === "curve-line") renderer.glyph.line_color = {value: soft};
    }
  }

  async function draw() {
    const data = Timeline.prepare(...await unpack("data"));
    await Bokeh.embed.embed_items(data.figures.documents, data.figures.items);
    const model = name => Bokeh.documents[0].get_model_by_name(name);
    const range = model("time"), whole = [range.start, range.end];
    const plots = Bokeh.documents[0].roots(), sources = sourcesOf(plots);
    data.lines.forEach((process, i) => {
      const time = data[`time${i}`], inUnit = values => values.map(v => v / data.memory_unit);
      sources.get(`line${i}`).data = {
        x: time,
        low: inUnit(data[`low${i}`]),
        high: inUnit(data[`high${i}`]),
        text: new Array(time.length).fill(data.processes[process]),
      };
    });

    const wide = () => Math.max(300, document.getElementById("spans").clientWidth - 90);
    let width = 0;
    function view() {
      const a = range.start, b = range.end;
      width = wide();
      sources.get("spans").data = Timeline.spans(data, a, b, width, colors(), css("--bad"));
      sources.get("stack").data = Timeline.stack(data, a, b, width, GROUPS, data.stack_unit);
      sources.get("peaks").data = Timeline.peaks(data, a, b, width, colors(), data.memory_unit);
    }
    let due = false;
    const later = () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => { due = false; view(); });
    };
    range.change.connect(later);
    new ResizeObserver(() => { if (wide() !== width) later(); })
      .observe(document.getElementById("spans"));

    function paint() {
      plots.forEach(paintPlot);
      const limit = model("limit"), cursor = model("cursor");
      if (limit) { limit.line_color = css("--bad"); model("limit-text").text_color = css("--bad"); }
      if (cursor) cursor.line_color = css("--ink");
      view();
    }
    repaint.push(paint);
    paint();

    // -- zoom: buttons, a double click, and the table of the largest tasks

    function show(from, to) {
      const length = Math.min(to - from, whole[1] - whole[0]);
      const start = Math.min(Math.max(from, whole[0]), whole[1] - length);
      range.setv({start, end: start + length});
    }
    function zoom({zoom: factor, move}) {
      const middle = (range.start + range.end) / 2, half = (range.end - range.start) / 2;
      const by = Number(factor), shift = Number(move ?? 0) * half;
      if (factor === "0") show(...whole);
      else if (shift) show(range.start + shift, range.end + shift);
      else show(middle - half * by, middle + half * by);
    }
    for (const button of document.querySelectorAll(".zoom button"))
      button.addEventListener("click", () => zoom(button.dataset));
    for (const name of ["memory", "stack", "spans"])
      document.getElementById(name).addEventListener("dblclick", () => show(...whole));
    const jump = row => {
      const from = Number(row.dataset.from), to = Number(row.dataset.to);
      const around = Math.max(to - from, (whole[1] - whole[0]) / 1e4);
      show(from - around, to + around);
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      document.getElementById("memory")
        .scrollIntoView({behavior: still ? "auto" : "smooth", block: "center"});
    };
    for (const row of document.querySelectorAll("tr[data-from]")) {
      row.addEventListener("click", () => jump(row));
      row.addEventListener("keydown", event => { if (event.key === "Enter") jump(row); });
    }
    return {data, view};
  }

  // After the first plots: the keys for their tooltips, and the scatter plots further down.
  async function drawRest({data, view}) {
    data.keys = (await unpack("keys"))[0].keys;
    view();
    if (data.scatters.length) {
      await Bokeh.embed.embed_items(data.panels.documents, data.panels.items);
      const plots = Bokeh.documents[1].roots(), sources = sourcesOf(plots);
      const model = name => Bokeh.documents[1].get_model_by_name(name);
      const paint = () => {
        plots.forEach(paintPlot);
        data.scatters.forEach((panel, i) => {
          const color = colors()[data.group[panel.name]];
          sources.get(`dots${i}`).data = Timeline.dots(data, panel, color, css("--bad"));
          if (panel.curve) sources.get(`curve${i}`).data = panel.curve;
          model(`scatter-x${i}`).end = panel.right;
          model(`scatter-y${i}`).end = panel.top;
        });
      };
      repaint.push(paint);
      paint();
    }
  }

  const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  async function drawAll() {
    const first = await draw();
    root.dataset.drawn = String(Math.round(performance.now()));
    await painted();
    await drawRest(first);
    root.dataset.complete = String(Math.round(performance.now()));
  }
  drawAll().catch(error => {
    const failure = document.getElementById("failure");
    failure.hidden = false;
    failure.textContent =
      `The plots could not be drawn: ${error.message}. The tables are complete.`;
    console.error(error);
  });
})();
