// SPDX-License-Identifier: Apache-2.0
// Draws a page's charts from its data (kinds and fields: userspace/report/page.h). Runs once, after the library.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const palette = {
    light: ["#1f5fbf", "#c9620c", "#2b8a4b", "#b8327f", "#6b46c1", "#0b8585", "#8a5a1c", "#c03434", "#6f7d00", "#2c7fb8",
      "#a04ba0", "#55637a"],
    dark: ["#82b1ff", "#ffa657", "#6fd08c", "#ff8ac4", "#b79cff", "#4fd1d1", "#d9b07a", "#ff8f8f", "#c8d44e", "#7cc7f0",
      "#dd9bdd", "#a9b5c8"],
  };
  // Dark to light on a light page and the other way round: the empty end meets the page's colour.
  const heat = {
    light: ["#e8eef7", "#b9d2ee", "#7fb2dd", "#3f86c4", "#2a5a9e", "#3b2e7e", "#2a1050"],
    dark: ["#222a38", "#26406b", "#2a629f", "#3a8fc0", "#74bfc7", "#c5e0a5", "#fdf3b0"],
  };

  const order = [...data.colours];
  const seen = (name) => { if (!order.includes(name)) order.push(name); };
  for (const chart of data.charts) {
    if (chart.kind === "bars" && chart.series.length === 1) chart.categories.forEach(seen);
    else if (chart.kind !== "heatmap" && !chart.stacked) chart.series.forEach((s) => seen(s.name));
  }

  const theme = () => dark.matches ? "dark" : "light";
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (name) => palette[theme()][order.indexOf(name) % palette.light.length];
  const number = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e4) {
      for (const [scale, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
        if (size >= scale) return `${+(value / scale).toPrecision(3)} ${suffix}`;
      }
    }
    return String(+value.toPrecision(size >= 1000 ? 4 : 3));
  };
  const with_unit = (unit) => (value) => value === null || value === undefined ? "–" : unit === "%" ?
    `${number(value)} %` : `${number(value)}${unit && unit !== "x" && !(/[kMGT]$/.test(number(value)) && unit.length < 4) ? " " : ""}${unit || ""}`;
  const axis_name = (axis) => (axis.name || "") + (axis.unit ? ` (${axis.unit})` : "");
  const escape = (text) => echarts.format.encodeHTML(String(text));

  function common() {
    return {
      animation: false,
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: css("--ink") },
      tooltip: {
        confine: true, backgroundColor: css("--card"), borderColor: css("--line"),
        textStyle: { color: css("--ink"), fontSize: 12 },
      },
      legend: { type: "plain", top: 0, left: 0, itemWidth: 18, itemHeight: 8, textStyle: { color: css("--ink") } },
    };
  }
  const label = () => ({ color: css("--soft"), hideOverlap: true });
  const rule = () => ({ lineStyle: { color: css("--line") } });

  // Rows that a legend of these names takes at this width, so that the plot begins below it.
  function legend_rows(names, width) {
    let rows = 1, used = 0;
    for (const name of names) {
      const item = 34 + 6.3 * name.length;
      if (used + item > width && used > 0) { rows += 1; used = 0; }
      used += item;
    }
    return rows;
  }

  function bars(chart, width) {
    const many = chart.series.length > 1;
    const whiskers = !many && !!chart.series[0].low;
    const bounds = chart.bounds || [];
    const format = with_unit(chart.unit);
    const longest = Math.max(...chart.categories.map((name) => name.length));
    // Names are whole: where one is too wide it goes on in the next line, and its bar gets the room.
    const names = Math.min(Math.ceil(longest * 7.2), Math.floor(width * .38));
    const rows = Math.ceil(longest * 7.2 / names) + (longest * 7.2 > names ? 1 : 0);
    const top = many ? 17 * legend_rows(chart.series.map((s) => s.name), width) + 7 : bounds.length ? 20 : 4;
    // Parts of a stack are no names that other charts have.
    const own = (name, at) => chart.stacked ? palette[theme()][(at + 9) % palette.light.length] : colour(name);
    const series = chart.series.map((s, at) => ({
      name: s.name, type: "bar", stack: chart.stacked ? "all" : undefined, barMaxWidth: 22, barMinWidth: 4,
      data: s.values.map((value, i) => ({
        value, itemStyle: { color: many ? own(s.name, at) : colour(chart.categories[i]) },
      })),
      itemStyle: { color: many ? own(s.name, at) : colour(chart.categories[0]), borderRadius: chart.stacked ? 0 : [0, 3, 3, 0] },
      label: chart.stacked || whiskers ? { show: false } : {
        show: true, position: "right", color: css("--ink"), fontSize: 11, formatter: (p) => format(p.value),
      },
    }));
    // The spread: a whisker from low to high on each bar, and the value beside it.
    if (whiskers) {
      const s = chart.series[0];
      series.push({
        type: "custom", name: "spread", z: 10, tooltip: { show: false }, silent: true,
        encode: { x: [1, 2], y: 0 },
        data: s.values.map((value, i) => [i, s.low[i], s.high[i], value]).filter((d) => d[3] !== null),
        renderItem: (params, api) => {
          const low = api.coord([api.value(1), api.value(0)]), high = api.coord([api.value(2), api.value(0)]);
          const style = { stroke: css("--ink"), lineWidth: 1.5, fill: null };
          const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style });
          const text = { type: "text", style: { text: format(api.value(3)), x: high[0] + 6, y: high[1], fontSize: 11,
            fill: css("--ink"), textVerticalAlign: "middle" } };
          if (high[0] - low[0] < 1) return { type: "group", children: [text] };
          return { type: "group", children: [text, line(low[0], low[1], high[0], high[1]),
            line(low[0], low[1] - 5, low[0], low[1] + 5), line(high[0], high[1] - 5, high[0], high[1] + 5)] };
        },
      });
    }
    if (bounds.length) {
      series[0].markLine = {
        symbol: "none", silent: true, lineStyle: { type: "dashed", color: css("--soft") },
        label: { formatter: (p) => p.name, color: css("--soft"), fontSize: 11, position: "start" },
        data: bounds.map((b) => ({ name: b.name, xAxis: b.value })),
      };
    }
    const group = chart.stacked ? 1 : chart.series.length;
    return {
      height: top + 44 + chart.categories.length * Math.max(30, 20 * group + 8, 15 * rows + 8),
      option: {
        ...common(), series,
        legend: many ? { ...common().legend, data: chart.series.map((s) => s.name) } : { show: false },
        tooltip: { ...common().tooltip, trigger: "axis", axisPointer: { type: "shadow" }, valueFormatter: format,
          formatter: undefined },
        grid: { left: names + 16, right: chart.stacked ? 20 : 64, top: top + 6, bottom: 24 },
        xAxis: { type: "value", axisLabel: { ...label(), formatter: format }, splitLine: rule(), splitNumber: width < 500 ? 3 : 5 },
        yAxis: { type: "category", inverse: true, data: chart.categories, axisTick: { show: false }, axisLine: rule(),
          axisLabel: { color: css("--ink"), fontSize: 12, lineHeight: 14, width: names, overflow: "break" } },
      },
    };
  }

  function lines(chart, width) {
    const names = chart.series.map((s) => s.name);
    const top = 17 * legend_rows(names, width) + 29;
    const x_format = with_unit(chart.x.unit), y_format = with_unit(chart.y.unit);
    // A colour that comes up a second time is told apart by diamonds on a dotted line.
    const again = (name) => order.indexOf(name) >= palette.light.length;
    const series = chart.series.map((s) => ({
      name: s.name, type: "line", data: s.points, step: s.step ? "end" : false, showSymbol: !!s.dots,
      symbol: again(s.name) ? "diamond" : "circle", symbolSize: again(s.name) ? 8 : 5, emphasis: { focus: "series" },
      lineStyle: { width: s.bound ? 1.5 : 2, type: s.bound ? "dashed" : again(s.name) ? "dotted" : "solid" },
      itemStyle: { color: s.bound ? css("--soft") : colour(s.name) },
    }));
    if (chart.marks && series.length) {
      series[0].markLine = {
        symbol: "none", silent: true, lineStyle: { type: "dotted", color: css("--soft") },
        // Along its line: two phases may begin side by side.
        label: { formatter: (p) => p.name, color: css("--soft"), fontSize: 11, position: "insideEndTop" },
        data: chart.marks.map((m) => ({ name: m.name, xAxis: m.x })),
      };
    }
    return {
      height: 280 + top,
      option: {
        ...common(), series, legend: { ...common().legend, data: names },
        tooltip: { ...common().tooltip, trigger: "axis", order: "valueDesc", valueFormatter: y_format,
          axisPointer: { label: { show: false } } },
        grid: { left: 8, right: 20, top: top + 10, bottom: 26, containLabel: true },
        xAxis: { type: chart.x.log ? "log" : "value", name: axis_name(chart.x), nameLocation: "middle", nameGap: 26,
          nameTextStyle: { color: css("--soft") }, axisLabel: { ...label(), formatter: number }, axisLine: rule(),
          splitLine: { show: false }, min: chart.x.log ? "dataMin" : undefined, max: "dataMax",
          axisPointer: { label: { formatter: (p) => x_format(p.value) } } },
        yAxis: { type: chart.y.log ? "log" : "value", name: axis_name(chart.y), nameLocation: "end",
          nameTextStyle: { color: css("--soft"), align: "left", padding: [0, 0, 0, -30] }, max: chart.y.max,
          axisLabel: { ...label(), formatter: number }, splitLine: rule() },
      },
    };
  }

  function heatmap(chart, width) {
    const columns = Math.max(0, ...chart.rows.map((r) => r.values.length));
    const cells = [];
    let most = 1;
    chart.rows.forEach((row, y) => row.values.forEach((value, x) => {
      if (value > 0) { cells.push([x, y, Math.log10(value), value]); most = Math.max(most, value); }
    }));
    const start = chart.x.start || 0;
    const at = (i) => number(+(start + i * chart.x.step).toPrecision(6));
    const format = with_unit(chart.unit);
    const height = Math.min(460, Math.max(240, 3.2 * chart.rows.length + 100));
    return {
      height,
      option: {
        ...common(), legend: { show: false },
        tooltip: { ...common().tooltip, formatter: (p) => p.value ? `${escape(chart.rows[p.value[1]].name)}<br>` +
          `${at(p.value[0])} to ${at(p.value[0] + 1)} ${escape(chart.x.unit || "")}<br><b>${escape(format(p.value[3]))}</b>` : "" },
        grid: { left: 8, right: 12, top: 34, bottom: 26, containLabel: true },
        xAxis: { type: "category", data: Array.from({ length: columns }, (_, i) => i), name: axis_name(chart.x),
          nameLocation: "middle", nameGap: 26, nameTextStyle: { color: css("--soft") }, axisTick: { show: false },
          axisLine: rule(), axisLabel: { ...label(), formatter: (i) => at(+i), interval: Math.max(1, Math.ceil(columns / (width < 500 ? 4 : 8))) - 1 } },
        yAxis: { type: "category", data: chart.rows.map((r) => r.name), axisTick: { show: false }, axisLine: rule(),
          axisLabel: { ...label(), fontSize: 11, interval: Math.max(1, Math.ceil(chart.rows.length / 8)) - 1,
            width: Math.max(106, width * .25), overflow: "truncate" } },
        visualMap: { type: "continuous", min: 0, max: Math.log10(most), dimension: 2, calculable: false, orient: "horizontal",
          top: 0, left: 0, itemWidth: 12, itemHeight: Math.min(180, width * .35), inRange: { color: heat[theme()] },
          text: [format(most), "1"], textStyle: { color: css("--soft") } },
        series: [{ type: "heatmap", data: cells, encode: { x: 0, y: 1, value: 2 }, progressive: 0, itemStyle: { borderWidth: 0 },
          markLine: chart.breaks && chart.breaks.length ? {
            symbol: "none", silent: true, lineStyle: { color: css("--ink"), type: "solid", width: 1 },
            label: { formatter: (p) => p.name, color: css("--ink"), position: "insideEndTop", fontSize: 11,
              backgroundColor: css("--card"), padding: 3, borderRadius: 3 },
            data: chart.breaks.map((b) => ({ name: b.name, yAxis: b.row })),
          } : undefined }],
      },
    };
  }

  const kinds = { bars, lines, heatmap };
  const drawn = new Map();

  function draw(element) {
    const old = drawn.get(element);
    if (old) old.dispose();
    const width = element.clientWidth;
    const index = +element.dataset.charts.split(" ")[+(element.dataset.chosen || 0)];
    const chart = data.charts[index];
    const { height, option } = kinds[chart.kind](chart, width);
    element.style.height = element.style.minHeight = `${height}px`;
    const instance = echarts.init(element, null, { renderer: chart.kind === "heatmap" ? "canvas" : "svg", width, height });
    instance.setOption(option);
    drawn.set(element, instance);
    element.dataset.width = width;
  }
  const draw_all = () => document.querySelectorAll(".chart").forEach(draw);
  const redraw = () => drawn.forEach((_, element) => draw(element));

  for (const group of document.querySelectorAll(".choice")) {
    const buttons = [...group.querySelectorAll("button")];
    buttons.forEach((button, i) => button.addEventListener("click", () => {
      buttons.forEach((b, j) => b.setAttribute("aria-pressed", String(i === j)));
      const element = group.nextElementSibling;
      element.dataset.chosen = i;
      const chart = data.charts[+element.dataset.charts.split(" ")[i]];
      group.previousElementSibling.querySelector("span").textContent = chart.note || "";
      draw(element);
    }));
  }
  // Charts are drawn when they come near the window: a page may have hundreds. The first ones at once.
  for (const element of document.querySelectorAll(".chart")) {
    if (element.getBoundingClientRect().top < 2 * innerHeight) draw(element);
  }
  const near = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
  }), { rootMargin: "100% 0px" });
  document.querySelectorAll(".chart").forEach((element) => near.observe(element));
  new ResizeObserver(() => drawn.forEach((_, element) => {
    if (+element.dataset.width !== element.clientWidth) draw(element);
  })).observe(document.body);
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", draw_all);
})();
