// Spans, stack and peaks for one range of time, computed from the packed columns. Pure functions of
// the data; page.js puts the results into the plots.
"use strict";
const Timeline = (() => {
  const BYTE_UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]];
  const SPANS_MOST = 20000;
  const FAILED = new Set([1, 3]);  // numbers of the states "error" and "killed"
  const KILLED = 3;
  const thousands = new Intl.NumberFormat("en");

  function bytesText(n) {
    if (!(n >= 0)) return "–";
    for (const [unit, size] of BYTE_UNITS) if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
    return `${Math.round(n)} B`;
  }

  function secondsText(s) {
    const clock = (n, unit) => `${Math.floor(n / 60)}:${String(n % 60).padStart(2, "0")} ${unit}`;
    if (s >= 3600) return clock(Math.round(s / 60), "h");
    if (s >= 60) return clock(Math.round(s), "min");
    if (s >= 1) return `${s.toFixed(2)} s`;
    return s >= 1e-3 ? `${(s * 1e3).toFixed(1)} ms` : `${Math.round(s * 1e6)} µs`;
  }

  // The head's lists and the arrays, with what every view needs: begin and end of each task in
  // milliseconds, and the tasks in order of their ends.
  function prepare(head, arrays) {
    const {inputs: inputsOf, ...others} = arrays;  // the head's list of texts has that name
    const n = arrays.start.length, begin = new Float64Array(n), end = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      begin[i] = arrays.start[i] / 1e3;
      end[i] = begin[i] + arrays.duration[i] * 1e3;
    }
    const byEnd = new Uint32Array(n);
    for (let i = 0; i < n; i++) byEnd[i] = i;
    byEnd.sort((a, b) => end[a] - end[b]);
    const need = head.on_device ? arrays.gpu : arrays.own;
    return {...head, ...others, need, inputsOf, keys: [], n, begin, end, byEnd};
  }

  // Texts of one task for a tooltip. hidden: number of other tasks that it stands for.
  function texts(data, i, hidden) {
    const killed = data.states[data.state[i]] === "killed";
    const peak = n => (killed && n >= 0 ? "≥ " : "") + bytesText(n);  // a lower bound if killed
    const facts = [
      `${peak(data.own[i])} own`,
      data.gpu[i] > 0 ? `${peak(data.gpu[i])} on a device` : "",
      `process ${peak(data.rss[i])}`,
      secondsText(data.duration[i]),
      data.state[i] ? data.states[data.state[i]] : "",
    ];
    const more = [
      data.chains[data.name[i]] ?? "",
      data.processes[data.process[i]] ?? "",
      hidden ? `and ${thousands.format(hidden)} smaller here: zoom in` : "",
    ];
    return {
      name: data.names[data.name[i]],
      key: data.keys[i] ?? "",
      facts: facts.filter(Boolean).join(" · "),
      inputs: data.inputs.length ? data.inputs[data.inputsOf[i]] : "",
      more: more.filter(Boolean).join(" · "),
    };
  }

  const TEXTS = ["name", "key", "facts", "inputs", "more"];
  function columns(names) { return Object.fromEntries(names.map(name => [name, []])); }
  function pushTexts(data, into, i, hidden) {
    const found = texts(data, i, hidden);
    for (const name of TEXTS) into[name].push(found[name]);
  }

  // Bars of the tasks between a and b. Tasks narrower than two pixels share one bar per pixel and
  // lane: the largest of them, whose tooltip says how many it hides.
  function spans(data, a, b, width, colors, bad) {
    // With very many lanes a bar stands for several pixels, so that there are at most SPANS_MOST.
    const pixel = (b - a) / width * Math.max(1, data.lanes * width / SPANS_MOST);
    const found = columns(["x0", "x1", "top", "bottom", "color", "edge", ...TEXTS]);
    const bar = (i, hidden) => {
      const inset = Math.min(0.32, 0.09 * data.depth[i]);
      found.x0.push(data.begin[i]);
      found.x1.push(Math.max(data.end[i], data.begin[i] + 2 * (b - a) / width));
      found.top.push(data.lane[i] - 0.42 + inset);
      found.bottom.push(data.lane[i] + 0.42 - inset);
      found.color.push(colors[data.group[data.name[i]]]);
      found.edge.push(FAILED.has(data.state[i]) ? bad : "transparent");
      pushTexts(data, found, i, hidden);
    };
    const small = new Map();  // place → the task that is shown there, and how many it hides
    for (let i = 0; i < data.n && data.begin[i] <= b; i++) {
      if (data.end[i] < a) continue;
      if (data.end[i] - data.begin[i] >= 2 * pixel) { bar(i, 0); continue; }
      const lane = data.lane[i] * 8 + Math.min(7, data.depth[i]);
      const place = lane * 65536 + Math.floor((data.begin[i] - a) / pixel);
      const held = small.get(place);
      if (!held) { small.set(place, {task: i, hidden: 0}); continue; }
      held.hidden++;
      const larger = data.need[i] > data.need[held.task] && data.state[held.task] !== KILLED;
      if (data.state[i] === KILLED || larger) held.task = i;
    }
    for (const {task, hidden} of small.values()) bar(task, hidden);
    return found;
  }

  // Peaks of the outermost tasks under way, by group. Each pixel shows the moment of its highest
  // sum, with the groups as they were at that moment: sums are true, and no peak is lost.
  function stack(data, a, b, width, groups, unit) {
    const buckets = Math.max(50, Math.min(1500, Math.floor(width))), step = (b - a) / buckets;
    const now = new Float64Array(groups), best = new Float64Array(groups * buckets);
    const most = new Float64Array(buckets).fill(-1);
    let total = 0, bucket = 0, nextBegin = 0, nextEnd = 0;
    const note = k => {
      if (total > most[k]) { most[k] = total; best.set(now, k * groups); }
    };
    while (nextBegin < data.n || nextEnd < data.n) {
      const ending = data.byEnd[nextEnd];
      const begins = nextBegin < data.n && (
        nextEnd >= data.n || data.begin[nextBegin] < data.end[ending]
        || data.begin[nextBegin] === data.end[nextBegin]);
      const i = begins ? nextBegin++ : data.byEnd[nextEnd++];
      const time = begins ? data.begin[i] : data.end[i];
      if (data.depth[i] !== 0 || !(data.need[i] > 0)) continue;
      if (time > b) break;
      const here = time < a ? -1 : Math.min(buckets - 1, Math.floor((time - a) / step));
      while (bucket <= here) { note(bucket); if (bucket === here) break; bucket++; }
      const group = data.group[data.name[i]], change = begins ? data.need[i] : -data.need[i];
      now[group] = Math.max(0, now[group] + change);
      total = Math.max(0, total + change);
      if (here >= 0) note(here);
    }
    for (; bucket < buckets; bucket++) note(bucket);
    const found = columns(["x", ...Array.from({length: groups}, (_, g) => `g${g}`)]);
    for (let k = 0; k < buckets; k++) for (const x of [a + k * step, a + (k + 1) * step]) {
      found.x.push(x);
      for (let g = 0; g < groups; g++) found[`g${g}`].push(best[k * groups + g] / unit);
    }
    return found;
  }

  // True resident peaks of tasks: the highest one of every few pixels.
  function peaks(data, a, b, width, colors, unit) {
    const found = columns(["x0", "x1", "y", "color", ...TEXTS]);
    const step = (b - a) / Math.max(30, width / 14), highest = new Map();
    for (let i = 0; i < data.n && data.begin[i] <= b; i++) {
      if (data.end[i] < a || !(data.rss[i] > 0)) continue;
      const middle = (Math.max(a, data.begin[i]) + Math.min(b, data.end[i])) / 2;
      const place = Math.floor((middle - a) / step), held = highest.get(place);
      if (held === undefined || data.rss[i] > data.rss[held]) highest.set(place, i);
    }
    for (const i of highest.values()) {
      const middle = (data.begin[i] + data.end[i]) / 2;
      const half = Math.max((data.end[i] - data.begin[i]) / 2, 0.3 * step);
      found.x0.push(middle - half);
      found.x1.push(middle + half);
      found.y.push(data.rss[i] / unit);
      found.color.push(colors[data.group[data.name[i]]]);
      pushTexts(data, found, i, 0);
    }
    return found;
  }

  // Dots of one name; of dots that would cover each other, one.
  function dots(data, panel, color, bad) {
    const found = columns(["x", "y", "color", ...TEXTS]), taken = new Set();
    const values = panel.kind === "gpu" ? data.gpu : data.own;
    for (let i = 0; i < data.n; i++) {
      if (data.name[i] !== panel.name || !(data.input[i] >= 0) || !(values[i] >= 0)) continue;
      const x = data.input[i] / panel.input_unit, y = values[i] / panel.unit;
      const place = Math.round(150 * x / panel.right) * 1000 + Math.round(120 * y / panel.top);
      if (taken.has(place)) continue;
      taken.add(place);
      found.x.push(x);
      found.y.push(y);
      found.color.push(FAILED.has(data.state[i]) ? bad : color);
      pushTexts(data, found, i, 0);
    }
    return found;
  }
  return {prepare, spans, stack, peaks, dots};
})();
