// Two charts of what came since the page was opened, each with a table for those who do not see it.

import { $, clock, element, fill, number, rate, show, words } from "./texts.js";

const { uPlot } = globalThis;
const POINTS_MAX = 900, GAP_S = 4, HEIGHT = 200, TABLE_ROWS = 12, TABLE_STEP = 10;

const CHARTS = [
	{ id: "claims", title: "chartClaims", series: [["seriesGranted", "--accent", "granted"], ["seriesRefused", "--warn", "refused"]] },
	{ id: "outbox", title: "chartOutbox", series: [["seriesOutbox", "--blue", "outbox"]] },
];

// Seconds, and the values at each.
const history = { time: [], granted: [], refused: [], outbox: [] };
const drawn = new Map();

export function record(at, values) {
	const last = history.time.at(-1);
	if (at <= last) return;
	if (at - last > GAP_S) push(last + 1, {}); // a line across would claim to know
	push(at, values);
}

function push(at, values) {
	history.time.push(at);
	for (const name of ["granted", "refused", "outbox"]) history[name].push(values[name] ?? null);
	if (history.time.length > POINTS_MAX) for (const list of Object.values(history)) list.shift();
}

export function drawCharts() {
	for (const chart of CHARTS) {
		const parts = drawn.get(chart.id) ?? build(chart);
		parts.plot.setData(dataOf(chart));
		for (const [at, [, , name]] of chart.series.entries()) {
			const known = history[name].filter((value) => value !== null);
			show(parts.legend.children[at].lastChild, known.length ? fill(words().chartNow, { now: rate(history[name].at(-1)), most: rate(Math.max(...known)) }) : "–");
		}
		if (parts.details.open) fillTable(chart, parts.rows);
	}
}

// Again, in other colours or words.
export function redrawCharts() {
	for (const { plot, figure } of drawn.values()) {
		plot.destroy();
		figure.remove();
	}
	drawn.clear();
}

const dataOf = ({ series }) => [history.time, ...series.map(([, , name]) => history[name])];

function build(chart) {
	const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
	const legend = element("ul", { className: "legend" }, ...chart.series.map(([label, mark]) => element("li", { className: mark.slice(2) }, element("span", { textContent: `${words()[label]} ` }), element("span"))));
	const place = element("div", { className: "plot", ariaHidden: "true" });
	const rows = element("tbody");
	const head = element("tr", {}, ...["time", ...chart.series.map(([label]) => label)].map((label) => element("th", { scope: "col", textContent: words()[label] })));
	const details = element("details", {}, element("summary", { textContent: words().asTable }), element("table", {}, element("thead", {}, head), rows));
	details.ontoggle = () => fillTable(chart, rows);
	const figure = element("figure", { className: "panel", id: `chart-${chart.id}` }, element("figcaption", {}, element("h2", { textContent: words()[chart.title] }), legend), place, details);
	$("charts").append(figure);
	const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
	const line = ([, mark]) => ({ stroke: colour(mark), fill: `${colour(mark)}1f`, width: 2, points: { show: false } });
	const plot = new uPlot({
		width: place.clientWidth || 300, height: HEIGHT, legend: { show: false }, cursor: { show: false }, padding: [8, 8, 0, 0],
		scales: { y: { range: (_, _least, most) => [0, Math.max(1, most * 1.1)] } },
		axes: [{ ...axis, space: 64, size: 30, values: timesOf }, { ...axis, size: 56, values: (_, splits) => splits.map((value) => number(value, 1)) }],
		series: [{}, ...chart.series.map(line)],
	}, dataOf(chart), place);
	new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
	const parts = { plot, figure, legend, details, rows };
	drawn.set(chart.id, parts);
	return parts;
}

// Seconds only where the axis has them.
const timesOf = (_, splits) => splits.map((at) => (splits.every((one) => one % 60 === 0) ? clock(at * 1000).slice(0, 5) : clock(at * 1000)));

function fillTable(chart, rows) {
	const lines = [];
	for (let at = history.time.length - 1; at >= 0 && lines.length < TABLE_ROWS; at -= TABLE_STEP) {
		const cells = chart.series.map(([, , name]) => element("td", { textContent: rate(history[name][at]) }));
		lines.push(element("tr", {}, element("th", { scope: "row", textContent: clock(history.time[at] * 1000) }), ...cells));
	}
	rows.replaceChildren(...lines);
}
