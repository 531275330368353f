// Serves the claim page's files as Cloudflare would, for plain workerd. Each file is a binding named by its path
// (edge/workerd.capnp); "_headers" lists, as it does on Cloudflare, the response headers by path.

const types = {
    html: "text/html; charset=utf-8",
    js: "text/javascript; charset=utf-8",
    css: "text/css; charset=utf-8",
    svg: "image/svg+xml",
};

// Bindings that are not the page's files have names without a slash.
const isFile = (env, path) => path.startsWith("/") && Object.hasOwn(env, path);

function parseHeaders(text) {
    const rules = [];
    for (const line of text.split("\n").filter((line) => line.trim() && !line.startsWith("#"))) {
        const colon = line.indexOf(":");
        if (/^\s/.test(line)) rules.at(-1).headers.push([line.slice(0, colon).trim(), line.slice(colon + 1).trim()]);
        else rules.push({ path: line.trim(), headers: [] });
    }
    return rules;
}

const matches = (rule, path) =>
    rule.path.endsWith("*") ? path.startsWith(rule.path.slice(0, -1)) : path === rule.path;

// Parsed once: embedded text never changes.
let rules;
function headersFor(env, path) {
    rules ??= parseHeaders(env._headers);
    return new Headers(rules.filter((rule) => matches(rule, path)).flatMap((rule) => rule.headers));
}

const base64url = (bytes) =>
    btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const etags = new Map();
async function etagOf(path, text) {
    if (!etags.has(path)) {
        const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
        etags.set(path, `"${base64url(new Uint8Array(digest).subarray(0, 16))}"`);
    }
    return etags.get(path);
}

const etagMatches = (header, etag) =>
    header?.split(",").some((one) => one.trim() === "*" || one.trim().replace(/^W\//, "") === etag);

// The same problem as the Worker's.
function notFound(request, env, path) {
    const id = base64url(crypto.getRandomValues(new Uint8Array(16)));
    const problem = {
        type: "/problems/not-found",
        title: "Not found",
        status: 404,
        detail: "no such path",
        code: "not_found",
        instance: id,
    };
    const headers = headersFor(env, path);
    headers.set("Content-Type", "application/problem+json");
    headers.set("Cache-Control", "no-store");
    headers.set("X-Request-Id", id);
    return new Response(request.method === "HEAD" ? null : JSON.stringify(problem), { status: 404, headers });
}

export default {
    async fetch(request, env) {
        const path = new URL(request.url).pathname;
        const file = path.endsWith("/") ? `${path}index.html` : path;
        if (!isFile(env, file)) return notFound(request, env, path);
        const headers = headersFor(env, path);
        const etag = await etagOf(file, env[file]);
        headers.set("ETag", etag);
        headers.set("Cache-Control", "public, max-age=0, must-revalidate");
        if (etagMatches(request.headers.get("If-None-Match"), etag)) return new Response(null, { status: 304, headers });
        headers.set("Content-Type", types[file.split(".").at(-1)] ?? "application/octet-stream");
        return new Response(request.method === "HEAD" ? null : env[file], { headers });
    },
};
