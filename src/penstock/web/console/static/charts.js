// Draws the samples of the cluster, of a stream or of a group, and renews them every 5 s.
"use strict";
(function () {
  const TITLES = { events: "events/s", bytes: "bytes/s", backlog: "bytes not in long-term storage", unread: "unread bytes" };
  const isBytes = { bytes: true, backlog: true, unread: true };
  const UNITS = ["", "Ki", "Mi", "Gi", "Ti"];
  const POWERS = Array.from({ length: 50 }, function (_, power) { return 2 ** power; });
  const COUNTS = Array.from({ length: 36 }, function (_, step) { return [1, 2, 5][step % 3] * 10 ** Math.floor(step / 3); });
  function clock(at) { return new Date(at * 1e3).toISOString().slice(11, 19); }
  function shown(value, name) {
    if (value === null || value === undefined) return "";
    if (!isBytes[name]) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    let unit = 0;
    while (value >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
    return value.toLocaleString("en", { maximumFractionDigits: 1 }) + " " + UNITS[unit] + "B";
  }
  document.querySelectorAll("[data-charts]").forEach(function (place) {
    const names = place.dataset.lines.split(" ");
    const style = getComputedStyle(document.documentElement);
    const colour = function (name) { return style.getPropertyValue(name).trim(); };
    const width = Math.min(place.clientWidth, 440);
    const charts = names.map(function (name) {
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const figure = document.createElement("figure");
      figure.style.margin = "0";
      figure.setAttribute("role", "img");
      figure.setAttribute("aria-label", TITLES[name] + " over time");
      place.append(figure);
      return new uPlot({
        title: TITLES[name], width: width, height: 190,
        axes: [
          Object.assign({ space: 80, values: function (_, marks) { return marks.map(clock); } }, axis),
          Object.assign({ incrs: isBytes[name] ? POWERS : COUNTS }, { size: 74, values: function (_, marks) { return marks.map(function (mark) { return shown(mark, name); }); } }, axis),
        ],
        scales: { y: { range: function (_, low, high) { return [0, Math.max(high * 1.05, 1)]; } } },
        series: [{ label: "time", value: function (_, at) { return at === null ? "" : clock(at); } }, { label: TITLES[name], stroke: colour("--link"), width: 1.5, points: { show: false }, value: function (_, value) { return shown(value, name); } }],
      }, [[], []], figure);
    });
    function renew() {
      fetch(place.dataset.charts, { credentials: "same-origin" }).then(function (answer) {
        return answer.ok ? answer.json() : null;
      }).then(function (data) {
        if (data !== null) charts.forEach(function (chart, at) { chart.setData([data.times, data[names[at]]]); });
      }).catch(function () { /* The server is away: the lines stay as they are, and the next attempt follows. */ });
    }
    renew();
    setInterval(renew, 5000);
  });
})();
