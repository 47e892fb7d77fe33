// One step, stage by stage, with zoom: buttons, keys, drag, and the wheel with Ctrl. What is narrower than a pixel is drawn with its
// neighbours, so that a step of many thousand blocks stays quick.
"use strict";

sextant.kinds.timeline = function (box, chart) {
  const used = {};
  const rows = chart.rows.map(function (row) {
    const blocks = [];
    let at = 0;
    for (let i = 0; i < row.blocks.length; i += 5) {
      const start = at + row.blocks[i], end = (at = start + row.blocks[i + 1]);
      used[row.blocks[i + 2]] = true;
      blocks.push({ start: start / 1e6, end: end / 1e6, kind: row.blocks[i + 2], mb: row.blocks[i + 3], chunk: row.blocks[i + 4] });
    }
    return { stage: row.stage, of: row.of, lane: row.lane, thin: row.thin, blocks: blocks };
  });
  sextant.legend(box, chart.kinds.filter(function (_, k) { return used[k]; }));
  const view = box.view || (box.view = { from: 0, to: 1 });
  const bar = d3.select(box).append("div").attr({ class: "zoom", role: "group", "aria-label": "Zoom of the timeline" });
  const plot = d3.select(box).append("div").attr({
    class: "plot", tabindex: 0, role: "group", "aria-label": chart.about + ". Plus and minus zoom, arrow keys move, 0 shows all.",
  });
  const stageHeight = chart.rows.length > 40 ? 14 : 20, thinHeight = 6;
  const nameOf = function (row) { return row.of ? row.stage + " " + row.of : "stage " + row.stage; };
  const left = 8 + d3.max(rows.map(function (row) { return sextant.textWidth(nameOf(row)); }));
  const width = Math.max(240, Math.floor(box.clientWidth)), right = width - 8;
  let top = 6;
  let last = null;
  rows.forEach(function (row) {
    if (last !== null && (last.stage !== row.stage || last.of !== row.of)) top += last.stage !== row.stage ? 7 : 3;
    row.y = top;
    row.first = last === null || last.stage !== row.stage || last.of !== row.of;
    row.height = row.thin ? thinHeight : stageHeight;
    top += row.height + 1;
    last = row;
  });
  const bottom = top + 4, x = d3.scale.linear().range([left, right]);
  const drawing = { svg: plot.append("svg").attr({ viewBox: "0 0 " + width + " " + (bottom + 40), role: "img", "aria-label": chart.about }) };
  const names = drawing.svg.append("g"), marks = drawing.svg.append("g"), axis = drawing.svg.append("g");
  rows.forEach(function (row) {
    if (!row.first) return;
    names.append("text").attr({ class: "soft", x: 0, y: row.y + row.height / 2 + 4 }).text(nameOf(row));
  });
  const said = function (b) {
    let text = chart.kinds[b.kind].name;
    if (b.mb >= 0) text += ", micro-batch " + b.mb;
    if (b.chunk >= 0) text += ", chunk " + b.chunk;
    return text + "\n" + sextant.seconds((b.end - b.start) * chart.step_s) + ", from " + sextant.seconds(b.start * chart.step_s);
  };
  const place = bar.append("span");

  // Rows with more blocks than a reader can tell apart: of every three pixels the shares of what is done in them, idle left out.
  const shares = function (row, blocks) {
    const n = Math.floor((right - left) / 3), bins = [], per = (view.to - view.from) / n;
    for (let i = 0; i < n; ++i) bins.push({});
    blocks.forEach(function (b) {
      const first = Math.max(0, Math.floor((b.start - view.from) / per)), end = Math.min(n - 1, Math.floor((b.end - view.from) / per));
      for (let i = first; i <= end; ++i) {
        const from = Math.max(b.start, view.from + i * per), to = Math.min(b.end, view.from + (i + 1) * per);
        if (to > from) bins[i][b.kind] = (bins[i][b.kind] || 0) + (to - from) / per;
      }
    });
    bins.forEach(function (bin, i) {
      let y = row.y + row.height;
      const kinds = Object.keys(bin), text = kinds.map(function (k) {
        return chart.kinds[k].name + " " + Math.round(100 * bin[k]) + " %";
      }).join(", ");
      kinds.forEach(function (k) {
        const height = Math.min(1, bin[k]) * row.height;
        sextant.rect(marks, chart.kinds[k].tone, { x: left + 3 * i, y: (y -= height), width: 3.1, height: height },
          "stage " + row.stage + (row.of ? " " + row.of : "") + " at " + sextant.seconds((view.from + i * per) * chart.step_s) + "\n" + text)
          .style("stroke-width", 0);
      });
    });
  };
  const draw = function () {
    x.domain([view.from, view.to]);
    marks.selectAll("*").remove();
    axis.selectAll("*").remove();
    rows.forEach(function (row) {
      const seen = row.blocks.filter(function (b) { return b.end > view.from && b.start < view.to; });
      if (seen.length > (right - left) / 4) return shares(row, seen);
      let open = null;
      const put = function () {
        if (!open) return;
        const b = open.block;
        const rect = sextant.rect(marks, chart.kinds[b.kind].tone,
          { x: open.x, y: row.y, width: Math.max(0.6, open.end - open.x), height: row.height },
          "stage " + row.stage + (row.of ? " " + row.of : "") + ": " + said(b));
        if (open.end - open.x < 3) rect.style("stroke-width", 0);
        if (!row.thin && b.mb >= 0 && !open.several) {
          const text = String(b.mb);
          if (open.end - open.x > sextant.textWidth(text) + 6)
            marks.append("text").attr({ class: "over inside", x: (open.x + open.end) / 2, y: row.y + row.height / 2 + 4, "text-anchor": "middle" }).text(text);
        }
        open = null;
      };
      seen.forEach(function (b) {
        const from = Math.max(left, x(b.start)), to = Math.min(right, x(b.end));
        if (open && open.block.kind === b.kind && from - open.end < 0.5 && (to - from < 1.2 || open.end - open.x < 1.2)) {
          open.end = to;
          open.several = true;
          return;
        }
        put();
        open = { block: b, x: from, end: to, several: false };
      });
      put();
    });
    const seconds = d3.scale.linear().domain([view.from * chart.step_s, view.to * chart.step_s]).range([left, right]);
    const ticks = d3.svg.axis().scale(seconds).orient("bottom").ticks(Math.max(2, Math.floor((right - left) / 110))).outerTickSize(0);
    axis.attr({ class: "axis", transform: "translate(0," + bottom + ")" }).call(ticks.tickFormat(sextant.seconds));
    // Labels at the ends stay on the page.
    axis.selectAll("text").each(function () {
      const at = d3.transform(d3.select(this.parentNode).attr("transform")).translate[0];
      const half = sextant.textWidth(this.textContent) / 2;
      if (at + half > width) d3.select(this).style("text-anchor", "end").attr("x", width - at);
    });
    place.text(sextant.seconds((view.to - view.from) * chart.step_s) + " of " + sextant.seconds(chart.step_s));
  };
  const move = function (from, size) {
    size = Math.min(1, Math.max(1e-4, size));
    view.from = Math.min(1 - size, Math.max(0, from));
    view.to = view.from + size;
    draw();
  };
  const zoom = function (factor, about) {
    const size = view.to - view.from, next = Math.min(1, Math.max(1e-4, size * factor));
    move(about - (about - view.from) * next / size, next);
  };
  const middle = function () { return (view.from + view.to) / 2; };
  const doing = {
    "in": function () { zoom(0.5, middle()); },
    out: function () { zoom(2, middle()); },
    left: function () { move(view.from - (view.to - view.from) / 4, view.to - view.from); },
    right: function () { move(view.from + (view.to - view.from) / 4, view.to - view.from); },
    all: function () { move(0, 1); },
  };
  [["in", "+", "Zoom in"], ["out", "−", "Zoom out"], ["left", "←", "Earlier"], ["right", "→", "Later"], ["all", "All", "Show the whole step"]].forEach(function (b) {
    bar.insert("button", "span").attr({ type: "button", title: b[2], "aria-label": b[2] }).text(b[1]).on("click", doing[b[0]]);
  });
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all" };
  plot.node().onkeydown = function (event) {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    doing[keys[event.key]]();
  };
  const share = function (event) {
    const area = plot.node().getBoundingClientRect();
    return x.invert((event.clientX - area.left) * width / area.width);
  };
  plot.node().addEventListener("wheel", function (event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, share(event));
  }, { passive: false });
  let held = null;
  plot.node().onpointerdown = function (event) {
    held = { at: share(event), id: event.pointerId };
    plot.node().setPointerCapture(event.pointerId);
  };
  plot.node().onpointermove = function (event) {
    if (held && event.buttons) move(view.from + held.at - share(event), view.to - view.from);
  };
  plot.node().onpointerup = plot.node().onpointercancel = function () { held = null; };
  plot.node().ondblclick = function (event) { zoom(0.5, share(event)); };
  draw();
};
