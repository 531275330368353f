// Serves the claim page's files in plain workerd as Cloudflare would. Each file is a binding named by its path
// (edge/workerd.capnp). "_headers" lists the response headers by path, in Cloudflare's format.

const types = {
    html: "text/html; charset=utf-8",
    js: "text/javascript; charset=utf-8",
    css: "text/css; charset=utf-8",
    svg: "image/svg+xml",
    png: "image/png",
};

// Returns the content of a file; `undefined` if there is none. The names of other bindings do not start with a slash.
function contentOf(env, path) {
    if (path.startsWith("/") && Object.hasOwn(env, path)) return env[path];
    const { generated } = env;
    if (Object.hasOwn(generated, path)) return Uint8Array.from(atob(generated[path]), (byte) => byte.charCodeAt(0));
}

function parseHeaders(text) {
    const rules = [];
    for (const line of text.split("\n").filter((line) => line.trim() && !line.startsWith("#"))) {
        const [, removed, name, value] = /^\s+(! )?([^:]+)(?::\s*(.*))?$/.exec(line) ?? [];
        if (removed) rules.at(-1).removed.push(name.trim());
        else if (name) rules.at(-1).headers.push([name.trim(), value.trim()]);
        else rules.push({ path: line.trim(), removed: [], headers: [] });
    }
    return rules;
}

const matches = (rule, path) =>
    rule.path.endsWith("*") ? path.startsWith(rule.path.slice(0, -1)) : path === rule.path;

// Parsed once, since embedded files never change.
let rules;
function headersFor(env, path) {
    rules ??= parseHeaders(env._headers);
    const headers = new Headers();
    for (const rule of rules.filter((rule) => matches(rule, path))) {
        for (const name of rule.removed) headers.delete(name);
        for (const [name, value] of rule.headers) headers.append(name, value);
    }
    return headers;
}

const base64url = (bytes) =>
    btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const etags = new Map();
async function etagOf(path, content) {
    if (!etags.has(path)) {
        const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
        const digest = await crypto.subtle.digest("SHA-256", bytes);
        etags.set(path, `"${base64url(new Uint8Array(digest).subarray(0, 16))}"`);
    }
    return etags.get(path);
}

const etagMatches = (header, etag) =>
    header?.split(",").some((one) => one.trim() === "*" || one.trim().replace(/^W\//, "") === etag);

export default {
    async fetch(request, env) {
        const path = new URL(request.url).pathname;
        const file = path.endsWith("/") ? `${path}index.html` : path;
        const content = contentOf(env, file);
        if (content === undefined) return new Response(null, { status: 404 }); // the Worker returns the problem
        const headers = headersFor(env, path);
        const etag = await etagOf(file, content);
        headers.set("ETag", etag);
        headers.set("Cache-Control", "public, max-age=0, must-revalidate");
        if (etagMatches(request.headers.get("If-None-Match"), etag)) return new Response(null, { status: 304, headers });
        headers.set("Content-Type", types[file.split(".").at(-1)] ?? "application/octet-stream");
        return new Response(request.method === "HEAD" ? null : content, { headers });
    },
};
