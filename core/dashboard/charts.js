// Two charts of the data since the page was opened, each with a table for screen readers.

import { $, clock, element, fill, number, rate, show, words } from "./display.js";

const { uPlot } = globalThis;
const POINTS_MAX = 900, AGE_S_MAX = 3600, SPAN_S_MIN = 60, GAP_S = 4, HEIGHT = 200, TABLE_ROWS = 12, TABLE_STEP = 10;

// Steps between the labels of an axis. No two labels may be equal: times are shown in seconds or minutes, numbers with
// one decimal.
const TIME_STEPS = [1, 5, 10, 15, 30, 60, 300, 600, 900, 1800];
const stepsFrom = (exponent) => Array.from({ length: 12 }, (_, at) => [1, 2, 5].map((digit) => digit * 10 ** (exponent + at))).flat();

const CHARTS = [
	{ id: "claims", title: "chartClaims", steps: stepsFrom(-1), series: [["seriesGranted", "--accent", "granted"], ["seriesRefused", "--warn", "refused"]] },
	{ id: "outbox", title: "chartOutbox", steps: stepsFrom(0), series: [["seriesOutbox", "--blue", "outbox"]] },
];

// Times in seconds, and the values at each time.
const history = { time: [], granted: [], refused: [], outbox: [] };
const drawn = new Map();

export function record(at, values) {
	const last = history.time.at(-1);
	if (at <= last) return;
	if (at - last > GAP_S) push(last + 1, {}); // a gap: no line across missing data
	push(at, values);
}

function push(at, values) {
	history.time.push(at);
	for (const name of ["granted", "refused", "outbox"]) history[name].push(values[name] ?? null);
	while (history.time.length > POINTS_MAX || history.time[0] < at - AGE_S_MAX) for (const list of Object.values(history)) list.shift();
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

// Removes the charts, so that they are redrawn in different colours or a different language.
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
		scales: { x: { range: (_, least, most) => [Math.min(least, most - SPAN_S_MIN), most] }, y: { range: (_, _least, most) => [0, Math.max(1, most * 1.1)] } },
		axes: [{ ...axis, incrs: TIME_STEPS, space: 64, size: 30, values: timesOf }, { ...axis, incrs: chart.steps, size: 56, values: (_, splits) => splits.map((value) => number(value, 1)) }],
		series: [{}, ...chart.series.map(line)],
	}, dataOf(chart), place);
	new ResizeObserver(() => {
		if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT }); // otherwise it is folded
	}).observe(place);
	const parts = { plot, figure, legend, details, rows };
	drawn.set(chart.id, parts);
	return parts;
}

// Shows seconds only if a label needs them.
const timesOf = (_, splits) => splits.map((at) => (splits.every((one) => one % 60 === 0) ? clock(at * 1000).slice(0, 5) : clock(at * 1000)));

function fillTable(chart, rows) {
	const lines = [];
	for (let at = history.time.length - 1; at >= 0 && lines.length < TABLE_ROWS; at -= TABLE_STEP) {
		const cells = chart.series.map(([, , name]) => element("td", { textContent: rate(history[name][at]) }));
		lines.push(element("tr", {}, element("th", { scope: "row", textContent: clock(history.time[at] * 1000) }), ...cells));
	}
	rows.replaceChildren(...lines);
}
