// Calls core's admin API for a dialog, and saves what was read as a file.

import { element, fill, words } from "./display.js";

const TIMEOUT_MS = 60000, CHANGE_TIMEOUT_MS = 6000;

// Returns the body of the answer to a GET, as "json", "text" or "blob", in which a file may take its time; null if
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

// Sends a change as JSON. Returns { reply, answer }; {} if no answer arrived in time.
export async function send(method, path, body, { token }) {
	const headers = { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/json" }) };
	try {
		const reply = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout?.(CHANGE_TIMEOUT_MS) });
		return { reply, answer: await reply.json() };
	} catch {
		return {};
	}
}

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
