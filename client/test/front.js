// A proxy in front of a real edge that records claims and injects faults into them.

import { createServer } from "node:http";
import { text } from "node:stream/consumers";

const PASSED = ["authorization", "claimgate-attempt", "claimgate-pass", "content-type", "idempotency-key", "if-none-match"];

/**
 * Starts the proxy. `claims` are the recorded requests. Each of `faults` applies to one of the next claims:
 * - "unsent": the request is lost.
 * - "unanswered": the response is lost.
 * - `{ status, headers, body }`: this response is sent instead of the edge's.
 * - null: no fault.
 */
export async function startFront(edge) {
	const claims = [], faults = [];
	const server = createServer(async (request, response) => {
		const { method, url, headers } = request;
		const body = await text(request);
		let fault = null;
		if (method === "POST") {
			claims.push({ at: performance.now(), key: headers["idempotency-key"], attempt: headers["claimgate-attempt"], pass: headers["claimgate-pass"], body });
			fault = faults.shift() ?? null;
		}
		if (fault === "unsent") return request.socket.destroy();
		if (fault?.status) return response.writeHead(fault.status, fault.headers).end(fault.body);
		const passed = Object.fromEntries(PASSED.filter((name) => headers[name]).map((name) => [name, headers[name]]));
		const reply = await fetch(edge + url, { method, headers: passed, body: body || undefined });
		const answer = await reply.text();
		if (fault === "unanswered") return request.socket.destroy();
		const kept = [...reply.headers].filter(([name]) => !/^(content-(encoding|length)|transfer-encoding|connection)$/.test(name));
		response.writeHead(reply.status, Object.fromEntries(kept)).end(answer);
	});
	await new Promise((done) => server.listen(0, "127.0.0.1", done));
	const stop = () => {
		server.closeAllConnections();
		return new Promise((done) => server.close(done));
	};
	return { url: `http://127.0.0.1:${server.address().port}`, claims, faults, stop };
}

/** Returns a problem to send instead of the edge's response. */
export function problem(status, code, headers = {}) {
	return { status, headers: { "Content-Type": "application/problem+json", ...headers }, body: JSON.stringify({ code, status, detail: "as told" }) };
}
