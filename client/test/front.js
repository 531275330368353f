// Stands before a real edge: keeps what was asked, and does to claims what a test tells it.

import { createServer } from "node:http";
import { text } from "node:stream/consumers";

const PASSED = ["authorization", "claimgate-attempt", "content-type", "idempotency-key", "if-none-match"];

/**
 * Starts one. `faults` are for the next claims, one each: "unsent" (it never arrives), "unanswered" (its answer is lost), an
 * answer `{ status, headers, body }` in the edge's place, or null for none. `claims` are those that were asked for.
 */
export async function startFront(edge) {
	const claims = [], faults = [];
	const server = createServer(async (request, response) => {
		const { method, url, headers } = request;
		const body = await text(request);
		let fault = null;
		if (method === "POST") {
			claims.push({ at: performance.now(), key: headers["idempotency-key"], attempt: headers["claimgate-attempt"], body });
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

/** A problem as an answer in the edge's place. */
export function problem(status, code, headers = {}) {
	return { status, headers: { "Content-Type": "application/problem+json", ...headers }, body: JSON.stringify({ code, status, detail: "as told" }) };
}
