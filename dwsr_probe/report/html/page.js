// The page: theme, tables, and the plots' sources for the range in view. Names only ever become text.
"use strict";
(() => {
  const root = document.documentElement, GROUPS = 7, PROCESSES = 5;
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
  document.getElementById("theme").addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; theme(); });
  theme();

  // -- tables

  function sortBy(table, column) {
    const head = table.tHead.rows[0].cells[column], down = head.getAttribute("aria-sort") !== "descending" && head.className === "n" || head.getAttribute("aria-sort") === "ascending";
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => { const cell = row.cells[column]; return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v); };
    const order = (a, b) => typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
    const rows = [...table.tBodies[0].rows].map(row => [value(row), row]).sort((a, b) => down ? order(b[0], a[0]) : order(a[0], b[0]));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }
  for (const table of document.querySelectorAll("table.sortable"))
    [...table.tHead.rows[0].cells].forEach((cell, i) => cell.firstChild.addEventListener("click", () => sortBy(table, i)));
  const search = document.getElementById("search"), names = document.getElementById("names");
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    for (const row of names.tBodies[0].rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  });

  // -- the packed data: 8 bytes of length, JSON, arrays

  async function unpack(element) {
    const text = atob(document.getElementById(element).textContent), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const whole = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
    const length = Number(new DataView(whole).getBigUint64(0, true)), head = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 8, length)));
    const arrays = {};
    for (const [name, [type, offset, size]] of Object.entries(head.arrays)) arrays[name] = new globalThis[type](whole, 8 + length + offset, size);
    return [head, arrays];
  }

  // -- plots

  function colors() { return Array.from({length: GROUPS}, (_, i) => css(`--g${i}`)); }
  function sourcesOf(plots) { return new Map(plots.flatMap(plot => plot.renderers).map(renderer => [renderer.data_source.name, renderer.data_source])); }

  function paintPlot(plot) {
    const soft = css("--soft"), rule = css("--rule"), shades = colors();
    for (const axis of [...plot.left, ...plot.below]) axis.setv({major_label_text_color: soft, axis_label_text_color: soft, axis_line_color: axis.axis_line_color && rule, major_tick_line_color: axis.major_tick_line_color && rule});
    for (const lines of plot.center) if ("grid_line_color" in lines) lines.grid_line_color = lines.dimension === 1 && plot.name !== "spans" ? css("--grid") : null;
    for (const tool of plot.toolbar.tools) if (tool.type === "BoxZoomTool") tool.overlay.setv({fill_color: css("--accent"), fill_alpha: 0.12, line_color: css("--accent"), line_width: 1, line_dash: []});
    for (const renderer of plot.renderers) {
      const [, kind, number] = /^([a-z-]+)(\d+)$/.exec(renderer.name ?? "") ?? [], main = {value: css(`--p${Math.min(number ?? 0, PROCESSES)}`)};
      if (kind === "group") renderer.glyph.setv({fill_color: {value: shades[number]}, fill_alpha: {value: 0.85}});
      if (kind === "line") renderer.glyph.setv({line_color: main, line_alpha: {value: number < PROCESSES ? 1 : 0.7}});
      if (kind === "band") renderer.glyph.fill_color = main;
      if (kind === "curve-band") renderer.glyph.fill_color = {value: soft};
      if (kind === "curve-line") renderer.glyph.line_color = {value: soft};
    }
  }

  async function draw() {
    const data = Timeline.prepare(...await unpack("data"));
    await Bokeh.embed.embed_items(data.figures.documents, data.figures.items);
    const model = name => Bokeh.documents[0].get_model_by_name(name), range = model("time"), whole = [range.start, range.end], plots = Bokeh.documents[0].roots();
    const lines = data.lines.map((process, i) => ({source: `line${i}`, data: {
      x: data[`time${i}`], low: data[`low${i}`].map(v => v / data.memory_unit), high: data[`high${i}`].map(v => v / data.memory_unit), text: new Array(data[`time${i}`].length).fill(data.processes[process])}}));
    const sources = sourcesOf(plots);
    for (const line of lines) sources.get(line.source).data = line.data;

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
    const later = () => { if (!due) { due = true; requestAnimationFrame(() => { due = false; view(); }); } };
    range.change.connect(later);
    new ResizeObserver(() => { if (wide() !== width) later(); }).observe(document.getElementById("spans"));

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
      const length = Math.min(to - from, whole[1] - whole[0]), start = Math.min(Math.max(from, whole[0]), whole[1] - length);
      range.setv({start, end: start + length});
    }
    for (const button of document.querySelectorAll(".zoom button")) button.addEventListener("click", () => {
      const middle = (range.start + range.end) / 2, half = (range.end - range.start) / 2, by = Number(button.dataset.zoom), move = Number(button.dataset.move ?? 0) * half;
      if (button.dataset.zoom === "0") show(...whole);
      else if (move) show(range.start + move, range.end + move);
      else show(middle - half * by, middle + half * by);
    });
    for (const name of ["memory", "stack", "spans"]) document.getElementById(name).addEventListener("dblclick", () => show(...whole));
    const jump = row => {
      const from = Number(row.dataset.from), to = Number(row.dataset.to), around = Math.max(to - from, (whole[1] - whole[0]) / 1e4);
      show(from - around, to + around);
      document.getElementById("memory").scrollIntoView({behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth", block: "center"});
    };
    for (const row of document.querySelectorAll("tr[data-from]")) {
      row.addEventListener("click", () => jump(row));
      row.addEventListener("keydown", event => { if (event.key === "Enter") jump(row); });
    }
    return {data, view};
  }

  // What is further down comes when the first plots are there, and keys for the tooltips.
  async function drawRest({data, view}) {
    data.keys = (await unpack("keys"))[0].keys;
    view();
    if (data.scatters.length) {
      await Bokeh.embed.embed_items(data.panels.documents, data.panels.items);
      const plots = Bokeh.documents[1].roots(), sources = sourcesOf(plots), model = name => Bokeh.documents[1].get_model_by_name(name);
      const paint = () => {
        plots.forEach(paintPlot);
        data.scatters.forEach((panel, i) => {
          sources.get(`dots${i}`).data = Timeline.dots(data, panel, colors()[data.group[panel.name]], css("--bad"));
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
    failure.textContent = `The plots could not be drawn: ${error.message}. The tables are complete.`;
    console.error(error);
  });
})();
