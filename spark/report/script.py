"""The page's JavaScript: one string. It draws the charts from the JSON that stands in the page.

Three kinds of chart: lines over time, strips (a row of bars per name) and lanes (who held what).
Everything from the journal becomes text nodes or attributes of its own, never markup. Each chart
has a title and a description, can be walked with the arrow keys, and has its table behind it,
which is made when it is opened.
"""

from __future__ import annotations

_BASE = r"""
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const NS = "http://www.w3.org/2000/svg";
let made = 0;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS(NS, tag), attributes, children);

const whole = (value) => value === null || value === undefined ? "–"
  : Number(value).toLocaleString("en", {maximumFractionDigits: 1});
function short(value) {
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${sign}`;
  }
  return `${+Number(value).toPrecision(3)}`;
}
function took(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${+Number(ms).toPrecision(3)} ms`;
  if (ms < 120000) return `${+(ms / 1000).toPrecision(3)} s`;
  if (ms < 7200000) return `${+(ms / 60000).toPrecision(3)} min`;
  return `${+(ms / 3600000).toPrecision(3)} h`;
}
function elapsed(ms) {
  if (ms < 60000) return `${+(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000), two = (n) => String(n).padStart(2, "0");
  const hours = Math.floor(seconds / 3600), minutes = Math.floor(seconds / 60) % 60;
  if (hours >= 48) return `${+(hours / 24).toFixed(1)} d`;
  return hours ? `${hours}:${two(minutes)} h` : `${minutes}:${two(seconds % 60)} min`;
}
function clock(ms) {
  const date = new Date(ms);
  return isNaN(date) ? String(ms) : date.toISOString().replace("T", " ").replace("Z", " UTC");
}
function clipped(text, room) {
  const most = Math.max(1, Math.floor(room / 6.8));
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}
function niceStep(span, wanted) {
  const raw = span / wanted, size = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw);
}
const TIME_STEPS = [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5,
  36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 2592e6, 7776e6, 31536e6];

class Amount { constructor(text) { this.text = text; } }
function table(heads, rows, tall) {
  const number = (cell) => typeof cell === "number" || cell instanceof Amount;
  const cell = (value) => value instanceof Node ? el("td", {}, value)
    : el("td", {class: number(value) ? "n" : "text"}, value instanceof Amount ? value.text
      : number(value) ? whole(value) : value === null || value === undefined ? "–"
      : String(value));
  const kinds = heads.map((_, i) => rows.some((row) => number(row[i])) ? "n" : "");
  return el("div", {class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region",
    "aria-label": heads.join(", ")},
    el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head, i) =>
      el("th", {scope: "col", class: kinds[i]}, head)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell))))));
}
function behind(heads, rows) {
  const details = el("details", {}, el("summary", {}, "the numbers as a table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) {
      details.append(table(heads, rows(), true));
    }
  });
  return details;
}
"""

_CHART = r"""
// A chart is drawn for the width that it has, and again when that changes.
const charts = [];
function chart(parent, title, about, paint, extras) {
  const id = `chart-${made += 1}`;
  const holder = el("div", {class: "canvas"});
  const tip = el("div", {class: "tip", hidden: ""});
  const figure = el("div", {class: "chart", id}, el("h3", {}, title),
    el("p", {class: "soft small"}, about), extras && extras.legend, holder, tip,
    extras && extras.behind);
  parent.append(figure);
  const one = {holder, width: 0, render() {
    const width = Math.max(240, Math.floor(holder.clientWidth));
    if (width === one.width) return;
    one.width = width;
    const {height, parts, hit} = paint(width);
    const svg = draw("svg", {viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
      tabindex: 0, "aria-labelledby": `${id}-t ${id}-d`},
      draw("title", {id: `${id}-t`}, title), draw("desc", {id: `${id}-d`}, about), ...parts);
    holder.replaceChildren(svg);
    listen(svg, holder, tip, hit, width, height);
  }};
  charts.push(one);
  one.render();
  return figure;
}
function listen(svg, holder, tip, hit, width, height) {
  if (!hit) return;
  const cross = draw("line", {class: "cross", y1: 0, y2: height, visibility: "hidden"});
  svg.append(cross);
  let x = null, y = 0;
  const hide = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  const show = () => {
    const found = hit(x, y);
    if (!found) return hide();
    cross.setAttribute("x1", found.x); cross.setAttribute("x2", found.x);
    cross.setAttribute("visibility", "visible");
    tip.textContent = found.text;
    tip.hidden = false;
    const left = found.x > width / 2 ? found.x - tip.offsetWidth - 14 : found.x + 14;
    tip.style.left = `${Math.max(0, Math.min(left, width - tip.offsetWidth))}px`;
    tip.style.top = `${holder.offsetTop + Math.min(Math.max(0, y - 10), height)}px`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    x = (event.clientX - box.left) * width / box.width;
    y = (event.clientY - box.top) * height / box.height;
    show();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = {ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -22], ArrowDown: [0, 22]}
      [event.key];
    if (!step) return;
    event.preventDefault();
    x = Math.min(width, Math.max(0, (x === null ? width / 2 : x) + step[0]));
    y = Math.min(height, Math.max(0, y + step[1]));
    show();
  });
}
function timeAxis(c, left, right, top, bottom) {
  const span = c.buckets * c.bucket_ms, from = c.start_ms - c.origin_ms;
  const x = (ms) => left + (right - left) * ms / span;
  const wanted = Math.max(2, Math.floor((right - left) / 70));
  const step = TIME_STEPS.find((one) => span / one <= wanted) || niceStep(span, wanted);
  const parts = [];
  for (let t = 0; from + t <= span; t += step) {
    const at = x(from + t);
    if (at > right - 20 && t) break;
    parts.push(draw("line", {class: "grid", x1: at, x2: at, y1: top, y2: bottom}),
      draw("text", {x: at, y: bottom + 14, "text-anchor": t ? "middle" : "start"}, elapsed(t)));
  }
  // Events that stand too close for a label each share one: the first one's word, and how many.
  let label = null, more = 0, last = -1e9;
  for (const [bucket, word, count] of c.events) {
    const at = x((bucket + .5) * c.bucket_ms);
    const named = at - last > 130 && right - at > 110;
    parts.push(draw("line", {class: "event", x1: at, x2: at, y1: top - 4, y2: bottom},
      draw("title", {}, count > 1 ? `${word}, ${count} times` : word)));
    if (named) {
      label = draw("text", {x: at - 2, y: top - 5}, `▾ ${word}`);
      parts.push(label); last = at; more = 0;
    } else if (label && at - last <= 130) {
      if (more) label.lastChild.remove();
      label.append(` +${more += 1}`);
    }
  }
  const bucketAt = (px) => {
    const bucket = Math.floor((px - left) / (right - left) * c.buckets);
    return px < left - 4 || px > right + 4 ? null : Math.min(c.buckets - 1, Math.max(0, bucket));
  };
  return {x, parts, bucketAt, middle: (bucket) => x((bucket + .5) * c.bucket_ms)};
}
function when(c, bucket) {
  const from = c.origin_ms + bucket * c.bucket_ms;
  const since = Math.max(0, from - c.start_ms);
  return `${elapsed(since)} from the start, for ${took(c.bucket_ms)}\n${clock(from)}`;
}
"""

_LINES = r"""
function legend(series) {
  return el("ul", {class: "legend"}, ...series.map((one, i) => el("li", {},
    draw("svg", {width: 30, height: 10, "aria-hidden": "true"},
      draw("line", {class: `series s${i % 8}`, x1: 0, x2: 30, y1: 5, y2: 5})),
    " ", el("span", {class: "name"}, one.name))));
}
// Where a value stands: on a scale from 0, or on a logarithmic one from the smallest power of 10.
function valueScale(series, log, top, bottom) {
  const values = series.flatMap((one) => one.values).filter((v) => v !== null);
  const high = Math.max(1, ...values), low = Math.min(0, ...values);
  if (!log) {
    const step = niceStep(high - low, 4), ticks = [];
    const floor = Math.floor(low / step) * step, roof = Math.ceil(high / step) * step;
    for (let v = floor; v <= roof + step / 2; v += step) ticks.push(v);
    return {ticks, y: (v) => bottom - (bottom - top) * (v - floor) / (roof - floor)};
  }
  const roof = Math.ceil(Math.log10(high)) || 1, ticks = [];
  for (let power = 0; power <= roof; power += 1) ticks.push(10 ** power);
  return {ticks, y: (v) => bottom - (bottom - top) * Math.log10(Math.max(1, v)) / roof};
}
function path(values, x, y) {
  let d = "", open = false;
  const lonely = [];
  values.forEach((value, i) => {
    if (value === null) { open = false; return; }
    const before = i > 0 && values[i - 1] !== null;
    const after = i + 1 < values.length && values[i + 1] !== null;
    if (!before && !after) lonely.push([x(i), y(value)]);
    d += `${open ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
  });
  return {d, lonely};
}
function lines(parent, c, {title, about, series, format, log}) {
  const left = 52, top = c.events.length ? 20 : 10, inner = 170;
  const paint = (width) => {
    const right = width - 8, bottom = top + inner;
    const axis = timeAxis(c, left, right, top, bottom);
    const scale = valueScale(series, log, top, bottom);
    const parts = [...axis.parts];
    for (const tick of scale.ticks) {
      parts.push(draw("line", {class: "grid", x1: left, x2: right, y1: scale.y(tick),
        y2: scale.y(tick)}), draw("text", {x: left - 6, y: scale.y(tick) + 4,
        "text-anchor": "end"}, log ? took(tick) : short(tick)));
    }
    series.forEach((one, i) => {
      const {d, lonely} = path(one.values, axis.middle, scale.y);
      if (d) parts.push(draw("path", {class: `series mark s${i % 8}`, d}));
      for (const [cx, cy] of lonely) {
        parts.push(draw("circle", {class: `mark f${i % 8}`, cx, cy, r: 2.2}));
      }
    });
    parts.push(draw("line", {class: "axis", x1: left, x2: right, y1: bottom, y2: bottom}));
    const hit = (px) => {
      const bucket = axis.bucketAt(px);
      return bucket === null ? null : {x: axis.middle(bucket), text: `${when(c, bucket)}\n` +
        series.map((one) => `${one.name}: ${format(one.values[bucket])}`).join("\n")};
    };
    return {height: bottom + 22, parts, hit};
  };
  return chart(parent, title, about, paint, {
    legend: legend(series),
    behind: behind(["from the start", ...series.map((one) => one.name)], () =>
      Array.from({length: c.buckets}, (_, i) => [
        elapsed(Math.max(0, c.origin_ms + i * c.bucket_ms - c.start_ms)),
        ...series.map((one) => one.values[i])])),
  });
}
"""

_ROWS = r"""
// Rows with a name each: beside the row where there is room, above it on a narrow screen.
function rowsLayout(c, width, count, size) {
  const narrow = width < 560, left = narrow ? 0 : Math.min(230, width * .24);
  const step = size + (narrow ? 20 : 6), top = c.events.length ? 22 : 8;
  return {
    narrow, left, right: width - 8, top, bottom: top + count * step, step,
    y: (i) => top + i * step + (narrow ? 16 : 0),
    row: (py) => {
      const i = Math.floor((py - top) / step);
      return i >= 0 && i < count ? i : null;
    },
    label: (i, text) => narrow
      ? draw("text", {class: "label", x: 0, y: top + i * step + 12}, clipped(text, width - 10))
      : draw("text", {class: "label", x: left - 8, y: top + i * step + size / 2 + 4,
        "text-anchor": "end"}, clipped(text, left - 10)),
  };
}
function strips(parent, c, {title, about, rows, unit, heads}) {
  const size = 22, high = Math.max(1, ...rows.flatMap((row) => row.values));
  const paint = (width) => {
    const place = rowsLayout(c, width, rows.length, size);
    const axis = timeAxis(c, place.left, place.right, place.top, place.bottom);
    const parts = [...axis.parts];
    const wide = Math.max(1, (place.right - place.left) / c.buckets - .4);
    rows.forEach((row, i) => {
      const y = place.y(i);
      parts.push(place.label(i, row.name));
      parts.push(draw("rect", {class: "outer", x: place.left, y, height: size,
        width: place.right - place.left}));
      for (const [from, to] of row.present || []) {
        parts.push(draw("rect", {class: "present", x: axis.x(from * c.bucket_ms), y, height: size,
          width: Math.max(2, axis.x((to + 1) * c.bucket_ms) - axis.x(from * c.bucket_ms))}));
      }
      let d = "";
      row.values.forEach((value, bucket) => {
        if (!value) return;
        const tall = Math.max(1.5, (size - 2) * value / high);
        d += `M${axis.x(bucket * c.bucket_ms).toFixed(1)} ${(y + size).toFixed(1)}v${
          (-tall).toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}z`;
      });
      if (d) parts.push(draw("path", {class: `mark f${row.colour || 0}`, d}));
      for (const [bucket, came, back, gone] of row.marks || []) {
        const x = axis.middle(bucket);
        if (came || back) parts.push(draw("path", {class: "mark f2",
          d: `M${x - 4} ${y + 8}h8l-4 -8z`}));
        if (gone) parts.push(draw("path", {class: "mark f6", d: `M${x - 4} ${y}h8l-4 8z`}));
      }
    });
    const hit = (px, py) => {
      const bucket = axis.bucketAt(px), i = place.row(py);
      if (bucket === null || i === null) return null;
      const row = rows[i], mark = (row.marks || []).find((one) => one[0] === bucket);
      const told = mark ? [[mark[1], "joined"], [mark[2], "came back"], [mark[3],
        `left (${mark[4] || "no reason"})`]].filter(([n]) => n).map(([n, word]) =>
        `\n${word}${n > 1 ? `, ${n} times` : ""}`).join("") : "";
      return {x: axis.middle(bucket), text: `${row.name}\n${when(c, bucket)}\n${
        whole(row.values[bucket])} ${unit}${told}`};
    };
    return {height: place.bottom + 22, parts, hit};
  };
  return chart(parent, title, `${about} The tallest bar is ${whole(high)} ${unit} in ${
    took(c.bucket_ms)}.`, paint, {behind: behind([heads || "name", "from the start", unit], () =>
    rows.flatMap((row) => row.values.map((value, i) => [row.name,
      elapsed(Math.max(0, c.origin_ms + i * c.bucket_ms - c.start_ms)), value])
      .filter((cells) => cells[2])))});
}
const ENDED = {done: "all of it was settled", retry: "a message failed and is retried",
  left: "its subscriber left", crash: "its subscriber died", slow: "its subscriber was slow",
  join: "another subscriber joined", queue_crash: "the queues crashed"};
function lanes(parent, c) {
  const {rows, owners} = c.lanes, size = 18;
  const span = c.end_ms - c.origin_ms;
  const single = new Set(rows.map((row) => row.subscription)).size < 2;
  const named = (row) => `${row.publisher} / ${row.partition}${
    single ? "" : ` (${row.subscription})`}`;
  const paint = (width) => {
    const place = rowsLayout(c, width, rows.length, size);
    const axis = timeAxis(c, place.left, place.right, place.top, place.bottom);
    const parts = [...axis.parts];
    rows.forEach((row, i) => {
      const y = place.y(i);
      parts.push(place.label(i, named(row)), draw("rect", {class: "outer", x: place.left, y,
        height: size, width: place.right - place.left}));
      row.segments.forEach(([start, end, owner, , , ended]) => {
        const x = axis.x(start), wide = Math.max(1.5, axis.x(end < 0 ? span : end) - x);
        parts.push(draw("rect", {class: `mark f${owner % 8}`, x, y: y + 1, height: size - 2,
          width: wide}));
        const number = String(owner + 1);
        if (wide > 4 + 7 * number.length) parts.push(draw("text", {class: "on", x: x + 3,
          y: y + size / 2 + 4}, number));
        if (ended && ended !== "done") parts.push(draw("path", {class: "mark ended",
          d: `M${x + wide} ${y - 2}v${size + 4}`}));
      });
    });
    const hit = (px, py) => {
      const i = place.row(py), bucket = axis.bucketAt(px);
      if (i === null || bucket === null) return null;
      const at = (px - place.left) / (place.right - place.left) * c.buckets * c.bucket_ms;
      const near = c.bucket_ms / 2;
      const found = rows[i].segments.filter(([start, end]) => start - near <= at
        && at <= (end < 0 ? span : end) + near).slice(0, 4);
      const told = found.map(([start, end, owner, count, messages, ended]) => `\n${owner + 1}: ${
        owners[owner]}, ${took((end < 0 ? span : end) - start)}, ${whole(messages)} messages${
        count > 1 ? ` in ${whole(count)} assignments` : ""}; ${
        end < 0 ? "still held" : ENDED[ended] || ended || ""}`).join("");
      return {x: px, text: `${named(rows[i])}\n${elapsed(Math.max(0, at - c.start_ms
        + c.origin_ms))} from the start${told || "\nnobody held it"}`};
    };
    return {height: place.bottom + 22, parts, hit};
  };
  const left = c.lanes.left_out;
  const about = `Each row is a partition as one subscription sees it, each bar the time that one ` +
    `subscriber held it; the number in the bar is the subscriber's in the list. A thick line at ` +
    `the end of a bar is a hand-over or a retry. Shown are the ${rows.length} with the most ` +
    `hand-overs and retries, then the busiest${left > 0 ? `; ${c.lanes.exact ? "" : "at least "}${
      whole(left)} others are left out` : ""}.`;
  return chart(parent, "Who owned which partition when", about, paint, {
    legend: el("ul", {class: "legend"}, ...owners.map((owner, i) => el("li", {},
      draw("svg", {width: 12, height: 12, "aria-hidden": "true"},
        draw("rect", {class: `f${i % 8}`, width: 12, height: 12})), ` ${i + 1} `,
      el("span", {class: "name"}, owner)))),
    behind: behind(["partition", "from", "to", "held by", "assignments", "messages", "ended"],
      () => rows.flatMap((row) => row.segments.map(([start, end, owner, count, messages, ended]) =>
        [named(row), elapsed(Math.max(0, start + c.origin_ms - c.start_ms)), end < 0 ? "open"
          : elapsed(Math.max(0, end + c.origin_ms - c.start_ms)), owners[owner], count, messages,
        end < 0 ? "still held" : ENDED[ended] || ended])).slice(0, 5000)),
  });
}
"""

_SECTIONS = r"""
const none = (parent, text) => parent.append(el("p", {class: "none"}, text));
const sum = (values) => values.reduce((a, b) => a + b, 0);
const messages = (c, kind) => (c.totals[kind] || {messages: 0}).messages;
const times = (c, kind) => (c.totals[kind] || {records: 0}).records;

function tiles(parent, c) {
  const handling = c.latency.handling.overall, about = [
    ["published", whole(messages(c, "Published"))], ["delivered", whole(messages(c, "Delivered"))],
    ["acked", whole(messages(c, "Acked"))], ["handled, p50", took(handling.p50)],
    ["handled, p99", took(handling.p99)],
    ["deepest queue", whole(Math.max(0, ...c.depth.subscriptions.flatMap((s) => s.depth)))],
    ["handed over", whole(messages(c, "Reassigned"))], ["retries", whole(times(c, "Nacked"))],
    ["parked", whole(c.parked.total)], ["duplicates refused", whole(messages(c,
      "DuplicatesDropped"))]];
  parent.append(el("dl", {class: "tiles"}, ...about.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
}
function throughput(parent, c) {
  const rate = (values) => values.map((value) => value * 1000 / c.bucket_ms);
  lines(parent, c, {title: "Throughput, messages per second",
    about: `Published, delivered and acked, over all subscriptions; each point is the mean of ${
      took(c.bucket_ms)}, of which the journal may cover only a part at both ends. A message ` +
      "that is delivered again counts again.",
    format: (v) => `${whole(v)} per second`, series: ["published", "delivered", "acked"].map(
      (name) => ({name, values: rate(c.flow[name])}))});
}
function latency(parent, c) {
  const {one_in, handling, delivery} = c.latency;
  if (!handling.overall.messages && !delivery.overall.messages) {
    return none(parent, "No message was delivered, so there is no latency.");
  }
  const of = one_in > 1 ? ` Taken from a fixed sample, about one message in ${whole(one_in)}.`
    : " Taken from all messages.";
  const pick = (one) => ["p50", "p90", "p99", "max"].map((name) => ({name, values: one[name]}));
  parent.append(table(["overall", "messages", "p50", "p90", "p99", "max"], [
    ["publish to first delivery", delivery], ["publish to handling (ack)", handling]].map(
    ([name, {overall}]) => [name, overall.messages, ...["p50", "p90", "p99", "max"].map((key) =>
      new Amount(took(overall[key])))])));
  if (handling.overall.messages) lines(parent, c, {title: "Latency from publish to handling",
    about: `From the Published record to the Acked record, at the time of the ack; logarithmic.${
      of}`, log: true, format: took, series: pick(handling)});
  lines(parent, c, {title: "Latency from publish to delivery", about: `From the Published record ` +
    `to the first Delivered record, at the time of the delivery; logarithmic.${of}`, log: true,
    format: took, series: pick(delivery)});
}
function depth(parent, c) {
  const subs = c.depth.subscriptions;
  if (!subs.length) return none(parent, "The channel has no subscription.");
  const more = (c.depth.left_out ? ` ${c.depth.left_out} other subscriptions are left out.` : "") +
    (c.depth.relative ? " The journal does not start at its first record, so this is relative to" +
      " what was owed then." : "");
  lines(parent, c, {title: "Lag: messages owed and not settled", about: "Per subscription, at " +
    "the end of each step: published since it was made and sent again, less acked, parked and " +
    `given up.${more}`, format: whole, series: subs.map((one) => ({name: one.subscription,
    values: one.depth}))});
  lines(parent, c, {title: "In flight: delivered and not settled", about: "Per subscription, at " +
    `the end of each step: delivered, less acked, taken back and withdrawn by a nack.${more}`,
    format: whole, series: subs.map((one) => ({name: one.subscription, values: one.in_flight}))});
}
function work(parent, c) {
  const {rows, rest, fairness} = c.subscribers;
  if (!rows.length) return none(parent, "Nobody subscribed.");
  for (const one of fairness) {
    parent.append(el("p", {}, el("strong", {class: "name"}, one.subscription), `: ${
      whole(one.subscribers)} subscriber${one.subscribers === 1 ? "" : "s"}, ${
      whole(one.acked)} messages; Jain's index ${one.index === null ? "– (no work was done)"
      : one.index.toFixed(2)}${one.subscribers > 1 && one.index !== null
      ? ` (1 is all the same, ${(1 / one.subscribers).toFixed(2)} is one did it all)` : ""}.`));
  }
  if (fairness.some((one) => one.subscribers > 1)) parent.append(el("p", {class: "soft small"},
    "The index knows nothing of who was there for how long; see the last two columns."));
  const most = Math.max(1, ...rows.map((row) => row.acked)), several = fairness.length > 1;
  const cells = (row, name) => {
    const bar = el("span", {class: "bar"}), share = fairness.find((one) =>
      one.subscription === row.subscription).acked;
    bar.style.width = `${Math.round(70 * row.acked / most)}px`;
    const seconds = Math.max(.001, (row.last_ms - row.first_ms) / 1000);
    return [name, ...(several ? [row.subscription] : []), row.acked,
      row.rest ? "" : el("span", {class: "barcell"}, bar, ` ${share
        ? (100 * row.acked / share).toFixed(1) : 0} %`),
      row.delivered, row.taken_back, row.nacked, row.stale, row.slow,
      new Amount(row.slowest_ms ? took(row.slowest_ms) : "–"), row.joined + row.resumed, row.left,
      new Amount(took(row.last_ms - row.first_ms)), +(row.acked / seconds).toFixed(1)];
  };
  parent.append(table(["subscriber", ...(several ? ["subscription"] : []), "acked", "share",
    "delivered", "taken back", "nacks", "stale", "slow", "slowest", "came", "left", "seen for",
    "acked/s"], [
    ...rows.map((row) => cells(row, row.subscriber)),
    ...rest.map((row) => cells(row, `${whole(row.members)} others`))], rows.length > 12));
}
function members(parent, c) {
  const {rows, left_reasons} = c.subscribers;
  if (!rows.length) return;
  const shown = rows.slice(0, 30), several = c.subscribers.fairness.length > 1;
  strips(parent, c, {title: "Subscribers coming and going, and what they acked",
    about: `Grey: subscribed. Bars: messages acked. A triangle up is a joining or coming back, ` +
      `a triangle down a leaving.${rows.length > 30 ? ` The 30 busiest of ${rows.length}.` : ""}`,
    unit: "messages acked", heads: "subscriber", rows: shown.map((row) => ({
      name: several ? `${row.subscriber} (${row.subscription})` : row.subscriber,
      values: row.over_time, present: row.present, marks: row.marks}))});
  if (left_reasons.length) parent.append(table(["why subscribers left", "times"],
    left_reasons.map((one) => [one.reason, one.records])));
}
function handovers(parent, c) {
  const {reasons, over_time, recalls, stale_acks} = c.handovers;
  if (!reasons.length) {
    none(parent, "Nothing was taken back from a subscriber.");
  } else {
    strips(parent, c, {title: "Messages taken back from a subscriber, by reason", about:
      "One row per reason.", unit: "messages", heads: "reason", rows: reasons.map((one) =>
      ({name: one.reason, values: over_time[one.reason]}))});
    parent.append(table(["reason", "meaning", "hand-overs", "partitions", "messages"],
      reasons.map((one) => [one.reason, ENDED[one.reason] || "", one.records, one.partitions,
        one.messages])));
  }
  if (recalls.length || stale_acks) parent.append(el("p", {class: "soft small"},
    `${recalls.map((one) => `${whole(one.records)} recalls (${one.reason})`).join(", ")}${
    recalls.length && stale_acks ? "; " : ""}${stale_acks ? `${whole(stale_acks)} records of ` +
    "stale acks, which changed nothing" : ""}.`));
}
function retries(parent, c) {
  const {over_time, attempts, reasons} = c.retries;
  if (!sum(over_time) && !c.parked.total) return none(parent, "No message failed.");
  strips(parent, c, {title: "Failed attempts and parked messages", about: "One row each.",
    unit: "records", heads: "what", rows: [{name: "nacked", values: over_time, colour: 1},
      {name: "parked", values: c.parked.over_time, colour: 6}]});
  const pairs = (head, rows) => rows.length && parent.append(table([head, "times"], rows));
  pairs("nacked on attempt", attempts.map(([attempt, n]) => [attempt >= 10 ? "10 or later"
    : String(attempt), n]));
  pairs("why messages were nacked", reasons.Nacked);
  pairs("why messages were parked", reasons.Parked);
}
function parked(parent, c) {
  const {total, rows, left_out, fates} = c.parked;
  if (!total) return none(parent, "No message was parked.");
  const told = fates.map((one) => `${whole(one.messages)} ${one.reason}`).join(", ");
  const were = total === 1 ? "was" : "were";
  parent.append(el("p", {}, `${whole(total)} ${were} parked${told ? `; of parked messages ${told}`
    : ""}.${left_out > 0 ? ` Shown are the last ${rows.length}.` : ""}`), table(
    ["sequence", "when", "subscription", "publisher", "partition", "position", "attempt", "scope",
      "reason", "now"], rows.map((row) => [row.sequence, elapsed(row.at_ms - c.start_ms),
      row.subscription, row.publisher, row.partition, row.position, row.attempt, row.scope,
      row.reason, row.fate || "parked"]), true));
}
function owned(parent, c) {
  if (!c.lanes.rows.length) return none(parent, "No partition was given to anybody.");
  return lanes(parent, c);
}
"""

_MAIN = r"""
const SECTIONS = [["Throughput", throughput], ["Latency", latency], ["Lag and queues", depth],
  ["Work per subscriber", work], ["Coming and going", members], ["Hand-overs", handovers],
  ["Ownership", owned], ["Retries", retries], ["Parked messages", parked]];

function show(parent, c) {
  charts.length = 0;
  parent.replaceChildren(el("p", {class: "soft"}, `${whole(c.records)} records from ${
    clock(c.start_ms)} to ${clock(c.end_ms)} (${took(c.end_ms - c.start_ms)}). Times below count ` +
    "from the first record; point at a chart for values, or focus it and use the arrow keys."));
  tiles(parent, c);
  for (const [title, section] of SECTIONS) {
    const place = el("section", {"aria-label": title}, el("h2", {}, title));
    parent.append(place);
    section(place, c);
  }
  for (const one of charts) one.render();
}
function main() {
  const parent = document.getElementById("charts"), all = figures.channels || [];
  const left = figures.channels_left_out || {channels: 0};
  parent.append(el("h2", {}, "Figures"));
  if (!all.length) return none(parent, "The journal holds no record, so there is nothing to draw.");
  const place = el("div", {});
  const picker = el("select", {id: "channel"}, ...all.map((c, i) => el("option", {value: i},
    `${c.channel} (${whole(messages(c, "Published"))} messages)`)));
  const name = el("strong", {class: "name"}, all[0].channel);
  if (all.length > 1) {
    parent.append(el("div", {class: "picker"}, el("label", {for: "channel"}, "Channel"), picker));
    picker.addEventListener("change", () => show(place, all[picker.value]));
  } else {
    parent.append(el("p", {}, "Channel ", name));
  }
  if (left.channels) parent.append(el("p", {class: "soft small"}, `The ${all.length} busiest ` +
    `channels have figures; ${whole(left.channels)} others with ${whole(left.messages)} messages ` +
    "do not. The verdict above is about all of them."));
  parent.append(place);
  show(place, all[0]);
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { for (const one of charts) one.render(); });
  });
}
function schemes() {
  const button = document.getElementById("scheme"), root = document.documentElement;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.scheme ? root.dataset.scheme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.scheme = dark ? "light" : "dark";
  });
}
schemes();
main();
"""

SCRIPT = f"(() => {{{_BASE}{_CHART}{_LINES}{_ROWS}{_SECTIONS}{_MAIN}}})();\n"
