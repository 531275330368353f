// Two charts of the last hour or minutes, each with a table for screen readers.

import { $, clock, element, fill, number, rate, show, words } from "./display.js";
import { isWholeHour, SPAN_S_MIN, shownSeries, switchSpan } from "./trends.js";

const { uPlot } = globalThis;
const HEIGHT = 200, TABLE_ROWS = 12;

// Steps between the labels of an axis. No two labels may be equal: times are shown in seconds or minutes, numbers with
// one decimal.
const TIME_STEPS = [1, 5, 10, 15, 30, 60, 300, 600, 900, 1800];
const stepsFrom = (exponent) => Array.from({ length: 12 }, (_, at) => [1, 2, 5].map((digit) => digit * 10 ** (exponent + at))).flat();

const CHARTS = [
	{ id: "claims", title: "chartClaims", steps: stepsFrom(-1), series: [["seriesGranted", "--accent", "granted"], ["seriesRefused", "--warn", "refused"]] },
	{ id: "outbox", title: "chartOutbox", steps: stepsFrom(0), series: [["seriesOutbox", "--blue", "outbox"]] },
];

const drawn = new Map();

const dataOf = ({ series }) => shownSeries(series.map(([, , name]) => name));

export function drawCharts() {
	for (const chart of CHARTS) {
		const parts = drawn.get(chart.id) ?? build(chart), data = dataOf(chart);
		parts.plot.setData(data);
		for (const [at, values] of data.slice(1).entries()) {
			const known = values.filter((value) => value !== null);
			show(parts.legend.children[at].lastChild, known.length ? fill(words().chartNow, { now: rate(values.at(-1)), most: rate(Math.max(...known)) }) : "–");
		}
		show(parts.span, isWholeHour() ? words().showMinutes : words().showHour);
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

function build(chart) {
	const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
	const legend = element("ul", { className: "legend" }, ...chart.series.map(([label, mark]) => element("li", { className: mark.slice(2) }, element("span", { textContent: `${words()[label]} ` }), element("span"))));
	const place = element("div", { className: "plot", ariaHidden: "true" });
	const rows = element("tbody");
	const head = element("tr", {}, ...["time", ...chart.series.map(([label]) => label)].map((label) => element("th", { scope: "col", textContent: words()[label] })));
	const details = element("details", {}, element("summary", { textContent: words().asTable }), element("table", {}, element("thead", {}, head), rows));
	details.ontoggle = () => fillTable(chart, rows);
	const span = element("button", { type: "button", className: "link", onclick: changeSpan });
	const heading = element("div", { className: "heading" }, element("h2", { textContent: words()[chart.title] }), span);
	const figure = element("figure", { className: "panel", id: `chart-${chart.id}` }, element("figcaption", {}, heading, legend), place, details);
	$("charts").append(figure);
	const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
	const line = ([, mark]) => ({ stroke: colour(mark), fill: `${colour(mark)}1f`, width: 2, points: { show: false } });
	const plot = new uPlot({
		width: place.clientWidth || 300, height: HEIGHT, legend: { show: false }, cursor: { show: false }, padding: [8, 28, 0, 0],
		scales: { x: { range: (_, least, most) => [Math.min(least, most - SPAN_S_MIN), most] }, y: { range: (_, _least, most) => [0, Math.max(1, most * 1.1)] } },
		axes: [{ ...axis, incrs: TIME_STEPS, space: 64, size: 30, values: timesOf }, { ...axis, incrs: chart.steps, size: 56, values: (_, splits) => splits.map((value) => number(value, 1)) }],
		series: [{}, ...chart.series.map(line)],
	}, dataOf(chart), place);
	new ResizeObserver(() => {
		if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT }); // otherwise it is folded
	}).observe(place);
	const parts = { plot, figure, span, legend, details, rows };
	drawn.set(chart.id, parts);
	return parts;
}

// Shows seconds only if a label needs them.
const timesOf = (_, splits) => splits.map((at) => (splits.every((one) => one % 60 === 0) ? clock(at * 1000).slice(0, 5) : clock(at * 1000)));

function changeSpan() {
	switchSpan();
	drawCharts();
}

function fillTable(chart, rows) {
	const [times, ...series] = dataOf(chart);
	const last = times.at(-1), step = (last - times[0]) / TABLE_ROWS;
	const indexes = new Set(Array.from({ length: TABLE_ROWS }, (_, row) => times.findLastIndex((at) => at <= last - row * step)));
	rows.replaceChildren(...[...indexes].map((index) => {
		const cells = series.map((values) => element("td", { textContent: rate(values[index]) }));
		return element("tr", {}, element("th", { scope: "row", textContent: clock(times[index] * 1000) }), ...cells);
	}));
}
