// The figures of the last hour: those that core remembers from before the page was opened, then those of each snapshot.

const AGE_S_MAX = 3600, MINUTES_S = 300, STEP_S = 5, PEAK_S = 60;
// Maximum time between two points that a line connects: core's samples are further apart than snapshots.
const SNAPSHOT_GAP_S = 4, SAMPLE_GAP_S = 12;
// Minimum time that is shown, and the number of parts of a campaign's trend line.
export const SPAN_S_MIN = 60, PARTS = 60;

// The trend line of a campaign whose rates are unknown, see `trendOf`.
export const NO_TREND = { trend: new Map(), peak: 0 };

// Points in the order of time: { at, granted, refused, outbox, rates, gap_s }. `at` is in seconds. `rates` has the
// campaigns whose rate is known: [id, claims per second].
const points = [];
let span = AGE_S_MAX;
let trends; // the trend lines by campaign; null if they must be computed again

function pointOf(time, figures, rates, gap_s) {
	const known = rates.filter(([, per_s]) => per_s !== null);
	return { at: Math.round(Date.parse(time) / 1000), ...figures, rates: known, gap_s };
}

// Records a snapshot's { granted, refused, outbox }, and the `rates` of its campaigns: [id, claims per second], null if
// unknown.
export function record(time, figures, rates) {
	const point = pointOf(time, figures, rates, SNAPSHOT_GAP_S);
	if (point.at <= points.at(-1)?.at) return;
	points.push(point);
	forgetOld();
}

const stepOf = ({ at }) => Math.floor(at / STEP_S);

// Fills in what core remembers of the time of which this page has no snapshots. The rates of a campaign belong to the
// newest samples: before them, it was idle or not among the busiest.
export function recordPast({ samples, campaigns }) {
	const known = new Set(points.map(stepOf));
	const past = samples.map(({ at, claims_per_s, refusals_per_s, outbox_events }, index) => {
		const rateOf = ([id, values]) => [id, claims_per_s === null ? null : values.at(index - samples.length) ?? 0];
		const figures = { granted: claims_per_s, refused: refusals_per_s, outbox: outbox_events };
		return pointOf(at, figures, Object.entries(campaigns).map(rateOf), SAMPLE_GAP_S);
	});
	points.push(...past.filter((point) => !known.has(stepOf(point))));
	points.sort((one, other) => one.at - other.at);
	forgetOld();
}

// Called after each change of `points`.
function forgetOld() {
	const latest = points.at(-1)?.at;
	points.splice(0, points.findIndex(({ at }) => at >= latest - AGE_S_MAX));
	trends = null;
}

// Returns whether the whole hour is shown, and not only its last minutes.
export const isWholeHour = () => span === AGE_S_MAX;

export function switchSpan() {
	span = isWholeHour() ? MINUTES_S : AGE_S_MAX;
	trends = null;
}

const shownPoints = () => points.filter(({ at }) => at >= points.at(-1).at - span);

// Returns the times that are shown, and the values of each of `names` at these times. A missing value is a gap, because
// no line may cross a time without figures.
export function shownSeries(names) {
	const times = [], series = names.map(() => []);
	const push = (at, values) => {
		times.push(at);
		for (const [index, name] of names.entries()) series[index].push(values[name] ?? null);
	};
	let last;
	for (const point of shownPoints()) {
		if (last && point.at - last.at > Math.max(last.gap_s, point.gap_s)) push(last.at + 1, {});
		push(point.at, point);
		last = point;
	}
	return [times, ...series];
}

// Returns a campaign's { trend, peak }. `trend` has its highest rate in each part of the time that is shown, without
// the parts in which no rate is known. `peak` is its highest rate in the last minute.
export function trendOf(id) {
	trends ??= computeTrends();
	return trends.get(id) ?? NO_TREND;
}

function computeTrends() {
	const shown = shownPoints(), end = shown.at(-1)?.at, begin = Math.min(shown[0]?.at, end - SPAN_S_MIN);
	const computed = new Map();
	for (const { at, rates } of shown) {
		const part = Math.min(PARTS - 1, Math.floor(((at - begin) * PARTS) / (end - begin)));
		for (const [id, per_s] of rates) {
			const one = computed.get(id) ?? computed.set(id, { trend: new Map(), peak: 0 }).get(id);
			one.trend.set(part, Math.max(one.trend.get(part) ?? 0, per_s));
			if (at > end - PEAK_S) one.peak = Math.max(one.peak, per_s);
		}
	}
	return computed;
}
