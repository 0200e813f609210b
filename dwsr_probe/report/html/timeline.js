// What is in view: spans, stack and peaks for one range of time, from the packed columns. Pure functions of the data; page.js puts the results into the plots.
"use strict";
const Timeline = (() => {
  const BIG = 2 ** 20, MOST = 20000, thousands = new Intl.NumberFormat("en");
  const bytesText = n => {
    if (!(n >= 0)) return "–";
    for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", BIG], ["KiB", 1024]]) if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
    return `${Math.round(n)} B`;
  };
  const secondsText = s => {
    if (s >= 3600) { const whole = Math.round(s / 60); return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} h`; }
    if (s >= 60) { const whole = Math.round(s); return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} min`; }
    return s >= 1 ? `${s.toFixed(2)} s` : s >= 1e-3 ? `${(s * 1e3).toFixed(1)} ms` : `${Math.round(s * 1e6)} µs`;
  };

  // The head's lists and the arrays, plus what every view needs: begin and end in ms, and the ends' order.
  function prepare(head, arrays) {
    const {inputs: inputsOf, ...others} = arrays;  // the head's list of texts has that name
    const n = arrays.start.length, begin = new Float64Array(n), end = new Float64Array(n);
    for (let i = 0; i < n; i++) { begin[i] = arrays.start[i] / 1e3; end[i] = begin[i] + arrays.duration[i] * 1e3; }
    const byEnd = new Uint32Array(n);
    for (let i = 0; i < n; i++) byEnd[i] = i;
    byEnd.sort((a, b) => end[a] - end[b]);
    return {...head, ...others, need: head.on_device ? arrays.gpu : arrays.own, inputsOf, keys: [], n, begin, end, byEnd};
  }

  // One task's texts for a tooltip; more: how many others lie under it.
  function texts(data, i, more) {
    const peak = n => (data.states[data.state[i]] === "killed" && n >= 0 ? "≥ " : "") + bytesText(n);  // what it had so far
    const facts = [`${peak(data.own[i])} own`, data.gpu[i] > 0 ? `${peak(data.gpu[i])} on a device` : "", `process ${peak(data.rss[i])}`, secondsText(data.duration[i]),
      data.state[i] ? data.states[data.state[i]] : ""];
    return {name: data.names[data.name[i]], key: data.keys[i] ?? "", facts: facts.filter(Boolean).join(" · "), inputs: data.inputs.length ? data.inputs[data.inputsOf[i]] : "",
      more: [data.processes[data.process[i]] ?? "", more ? `and ${thousands.format(more)} smaller here: zoom in` : ""].filter(Boolean).join(" · ")};
  }

  function columns(names) { return Object.fromEntries(names.map(name => [name, []])); }
  const TEXTS = ["name", "key", "facts", "inputs", "more"];
  function push(data, into, i, more) { const found = texts(data, i, more); for (const name of TEXTS) into[name].push(found[name]); }

  // Bars of the tasks between a and b. Those narrower than two pixels share one per pixel and lane: the largest, which says how many it hides.
  function spans(data, a, b, width, colors, bad) {
    // Of very many threads more pixels share one, so that there are never more than MOST in all.
    const pixel = (b - a) / width * Math.max(1, data.lanes * width / MOST), small = new Map(), found = columns(["x0", "x1", "top", "bottom", "color", "edge", ...TEXTS]);
    const bar = (i, more) => {
      const inset = Math.min(0.32, 0.09 * data.depth[i]);
      found.x0.push(data.begin[i]); found.x1.push(Math.max(data.end[i], data.begin[i] + 2 * (b - a) / width));
      found.top.push(data.lane[i] - 0.42 + inset); found.bottom.push(data.lane[i] + 0.42 - inset);
      found.color.push(colors[data.group[data.name[i]]]); found.edge.push(data.state[i] === 1 || data.state[i] === 3 ? bad : "transparent");
      push(data, found, i, more);
    };
    for (let i = 0; i < data.n && data.begin[i] <= b; i++) {
      if (data.end[i] < a) continue;
      if (data.end[i] - data.begin[i] >= 2 * pixel) { bar(i, 0); continue; }
      const place = (data.lane[i] * 8 + Math.min(7, data.depth[i])) * 65536 + Math.floor((data.begin[i] - a) / pixel);
      const held = small.get(place);
      if (!held) small.set(place, [i, 0]);
      else { held[1]++; if (data.state[i] === 3 || (data.need[i] > data.need[held[0]] && data.state[held[0]] !== 3)) held[0] = i; }
    }
    for (const [i, more] of small.values()) bar(i, more);
    return found;
  }

  // Needs of the outermost tasks under way, by group. Of each pixel its fullest moment, as it was then: sums are true, and no peak is lost.
  function stack(data, a, b, width, groups, unit) {
    const buckets = Math.max(50, Math.min(1500, Math.floor(width))), step = (b - a) / buckets;
    const now = new Float64Array(groups), best = new Float64Array(groups * buckets), most = new Float64Array(buckets).fill(-1);
    let total = 0, at = 0, s = 0, e = 0;
    const note = k => { if (total > most[k]) { most[k] = total; best.set(now, k * groups); } };
    const counts = i => data.depth[i] === 0 && data.need[i] > 0;
    while (s < data.n || e < data.n) {
      const starts = s < data.n && (e >= data.n || data.begin[s] < data.end[data.byEnd[e]] || data.begin[s] === data.end[s]);
      const i = starts ? s++ : data.byEnd[e++], time = starts ? data.begin[i] : data.end[i];
      if (!counts(i)) continue;
      if (time > b) break;
      const here = time < a ? -1 : Math.min(buckets - 1, Math.floor((time - a) / step));
      while (at <= here) { note(at); if (at === here) break; at++; }
      const group = data.group[data.name[i]], change = starts ? data.need[i] : -data.need[i];
      now[group] = Math.max(0, now[group] + change); total = Math.max(0, total + change);
      if (here >= 0) note(here);
    }
    for (; at < buckets; at++) note(at);
    const found = columns(["x", ...Array.from({length: groups}, (_, g) => `g${g}`)]);
    for (let k = 0; k < buckets; k++) for (const x of [a + k * step, a + (k + 1) * step]) {
      found.x.push(x);
      for (let g = 0; g < groups; g++) found[`g${g}`].push(best[k * groups + g] / unit);
    }
    return found;
  }

  // Tasks' true resident peaks: of each few pixels the highest.
  function peaks(data, a, b, width, colors, unit) {
    const found = columns(["x0", "x1", "y", "color", ...TEXTS]), step = (b - a) / Math.max(30, width / 14), highest = new Map();
    for (let i = 0; i < data.n && data.begin[i] <= b; i++) {
      if (data.end[i] < a || !(data.rss[i] > 0)) continue;
      const place = Math.floor(((Math.max(a, data.begin[i]) + Math.min(b, data.end[i])) / 2 - a) / step), held = highest.get(place);
      if (held === undefined || data.rss[i] > data.rss[held]) highest.set(place, i);
    }
    for (const i of highest.values()) {
      const middle = (data.begin[i] + data.end[i]) / 2, half = Math.max((data.end[i] - data.begin[i]) / 2, 0.3 * step);
      found.x0.push(middle - half); found.x1.push(middle + half); found.y.push(data.rss[i] / unit); found.color.push(colors[data.group[data.name[i]]]);
      push(data, found, i, 0);
    }
    return found;
  }

  // Dots of one name; of those that would cover each other one.
  function dots(data, panel, color, bad) {
    const found = columns(["x", "y", "color", ...TEXTS]), taken = new Set(), values = panel.kind === "gpu" ? data.gpu : data.own;
    for (let i = 0; i < data.n; i++) {
      if (data.name[i] !== panel.name || !(data.input[i] >= 0) || !(values[i] >= 0)) continue;
      const x = data.input[i] / panel.input_unit, y = values[i] / panel.unit, place = Math.round(150 * x / panel.right) * 1000 + Math.round(120 * y / panel.top);
      if (taken.has(place)) continue;
      taken.add(place);
      found.x.push(x); found.y.push(y); found.color.push(data.state[i] === 1 || data.state[i] === 3 ? bad : color);
      push(data, found, i, 0);
    }
    return found;
  }
  return {prepare, spans, stack, peaks, dots};
})();
