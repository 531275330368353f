// Server-sent events, read by fetch: an EventSource could not send the token as a header.

const RETRY_MS_MIN = 1000, RETRY_MS_MAX = 15000, SILENCE_MS_MAX = 8000;

// Calls `told(name, data)` for each event of `url` until `signal` is aborted or the token is refused, and `lost(why, ms)`
// whenever the stream has ended and is tried again in so long: `why` is the status and the problem's code. Returns the status
// that refused the token.
export async function follow(url, token, signal, { told, lost }) {
	for (let wait = RETRY_MS_MIN; !signal.aborted; wait = Math.min(wait * 2, RETRY_MS_MAX)) {
		const why = await read(url, token, signal, (name, data) => {
			wait = RETRY_MS_MIN / 2;
			told(name, data);
		});
		if (signal.aborted) return 0;
		if (why.status === 401 || why.status === 403) return why.status;
		const pause = wait * (0.8 + 0.4 * Math.random());
		lost(why, pause);
		await new Promise((done) => setTimeout(done, pause));
	}
	return 0;
}

// Reads until the stream ends. Returns why.
async function read(url, token, signal, told) {
	const silence = new AbortController();
	let timer;
	const heard = () => {
		clearTimeout(timer);
		timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
	};
	heard();
	try {
		const headers = { Authorization: `Bearer ${token}`, Accept: "text/event-stream" };
		const reply = await fetch(url, { headers, cache: "no-store", signal: AbortSignal.any([signal, silence.signal]) });
		if (!reply.ok) return { status: reply.status, ...(await reply.json()) };
		let rest = "";
		for (const lines = reply.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
			const { done, value } = await lines.read();
			if (done) return {};
			heard();
			const events = (rest + value).split("\n\n");
			rest = events.pop();
			for (const event of events) tell(event, told);
		}
	} catch {
		return {}; // no network, or silence
	} finally {
		clearTimeout(timer);
		silence.abort();
	}
}

function tell(event, told) {
	const field = (name) => event.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
	if (field("data")) told(field("event"), JSON.parse(field("data")));
}
