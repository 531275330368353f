// Reads server-sent events by fetch, because an EventSource cannot send the token as a header.

const RETRY_MS_MIN = 1000, RETRY_MS_MAX = 15000, SILENCE_MS_MAX = 8000;

// Calls `onEvent(name, data)` for each event of `url` until `signal` is aborted or the token is rejected. Calls
// `onLost(why, ms)` when the stream has ended and will be retried in `ms`; `why` has the status and the problem's code.
// Returns the status that rejected the token, or 0.
export async function follow(url, token, signal, { onEvent, onLost }) {
	for (let wait = RETRY_MS_MIN; !signal.aborted; wait = Math.min(wait * 2, RETRY_MS_MAX)) {
		const why = await read(url, token, signal, (name, data) => {
			wait = RETRY_MS_MIN / 2;
			onEvent(name, data);
		});
		if (signal.aborted) return 0;
		if (why.status === 401 || why.status === 403) return why.status;
		const pause = wait * (0.8 + 0.4 * Math.random());
		onLost(why, pause);
		await new Promise((done) => setTimeout(done, pause));
	}
	return 0;
}

// Reads until the stream ends. Returns the reason.
async function read(url, token, signal, onEvent) {
	const silence = new AbortController();
	const stop = () => silence.abort();
	signal.addEventListener("abort", stop);
	let timer;
	const restartTimer = () => {
		clearTimeout(timer);
		timer = setTimeout(stop, SILENCE_MS_MAX);
	};
	restartTimer();
	try {
		const headers = { Authorization: `Bearer ${token}`, Accept: "text/event-stream" };
		const reply = await fetch(url, { headers, cache: "no-store", signal: silence.signal });
		if (!reply.ok) return { status: reply.status, ...(await reply.json()) };
		let rest = "";
		for (const lines = reply.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
			const { done, value } = await lines.read();
			if (done) return {};
			restartTimer();
			const events = (rest + value).split("\n\n");
			rest = events.pop();
			for (const event of events) dispatch(event, onEvent);
		}
	} catch {
		return {}; // no network, or silence
	} finally {
		clearTimeout(timer);
		signal.removeEventListener("abort", stop);
		stop();
	}
}

function dispatch(event, onEvent) {
	const field = (name) => event.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
	if (field("data")) onEvent(field("event"), JSON.parse(field("data")));
}
