// Calls core's admin API for a dialog, and saves what was read as a file.

import { element, fill, words } from "./display.js";

// Core's own limit for a file is 10 minutes.
const TIMEOUT_MS = 60000, CHANGE_TIMEOUT_MS = 6000, FILE_TIMEOUT_MS = 660000;

// Returns the body of the response to a GET, as "json", "text" or "blob", in which a file may take its time; null if
// there is none. `dialog` is { token, onUnauthorized }.
export async function read(path, accept, as, { token, onUnauthorized }) {
	const signal = as === "blob" ? undefined : AbortSignal.timeout?.(TIMEOUT_MS);
	try {
		const reply = await fetch(path, { headers: { Authorization: `Bearer ${token}`, Accept: accept }, signal });
		if (reply.status === 401) onUnauthorized();
		return reply.ok ? await reply[as]() : null;
	} catch {
		return null;
	}
}

// Sends a change as JSON. Returns { reply, answer }; {} if no response arrived in time.
export function send(method, path, body, caller) {
	return exchange(path, { method, body: body && JSON.stringify(body) }, "application/json", CHANGE_TIMEOUT_MS, caller);
}

// Sends the content of a CSV file, and returns like `send`.
export function sendFile(path, file, caller) {
	return exchange(path, { method: "POST", body: file }, "text/csv", FILE_TIMEOUT_MS, caller);
}

async function exchange(path, request, type, timeout, { token }) {
	const headers = { Authorization: `Bearer ${token}`, ...(request.body && { "Content-Type": type }) };
	try {
		const reply = await fetch(path, { ...request, headers, signal: AbortSignal.timeout?.(timeout) });
		const answer = reply.json();
		// A proxy may reject a request with a page instead of JSON.
		return { reply, answer: await (isRejected(reply) ? answer.catch(() => ({})) : answer) };
	} catch {
		return {};
	}
}

// Returns whether a request was rejected and changed nothing. After a 408, the outcome is unknown.
export const isRejected = (reply) => reply?.status >= 400 && reply.status < 500 && reply.status !== 408;

// Describes why core did not make a change, or that the outcome is unknown.
export function problemText({ reply, answer }) {
	if (!reply) return words().inDoubt;
	return words().problems[answer.code] ?? fill(words().refusedAs, { detail: answer.detail ?? reply.status });
}

export function save(blob, name) {
	const file = URL.createObjectURL(blob);
	element("a", { href: file, download: name }).click();
	URL.revokeObjectURL(file);
}
