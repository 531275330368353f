// Signs a visitor in with the tokens' issuer: authorization code with PKCE (RFC 7636). Opened by the claim page with
// `return_to`, and again by the issuer with the code. Leaves the token where the claim page expects it.

import { showBrand } from "../display.js";
import { languageOf, languages } from "../messages.js";
import { load, save } from "../storage.js";
import * as oauth from "./oauth4webapi.js";

const SETTINGS_MS_MAX = 6000;
const REDIRECT_URI = new URL("/sign-in/", location.origin).href;

const query = new URLSearchParams(location.search);
// State that the first visit stores for the second: { state, nonce, verifier, returnTo }. Belongs to this tab.
const attempt = load("sign-in", "sessionStorage");
const isAnswer = query.has("state");
const returnTo = ownUrl((isAnswer ? attempt?.returnTo : query.get("return_to")) ?? "/");
const words = languages[languageOf(returnTo.searchParams)];

// Returns the URL if it belongs to this origin, otherwise the root: no link may lead a signed-in visitor elsewhere.
function ownUrl(text) {
	const url = new URL(text, location.origin);
	return url.origin === location.origin ? url : new URL(location.origin);
}

async function settings() {
	const reply = await fetch("/sign-in/settings", { signal: AbortSignal.timeout?.(SETTINGS_MS_MAX) });
	return (await reply.json()).openid;
}

// Returns the issuer's endpoints, the client, and the options of each call to the issuer.
async function connect(openid) {
	const issuer = new URL(openid.issuer);
	const options = { [oauth.allowInsecureRequests]: issuer.protocol === "http:" }; // the edge allows it on this machine only
	const server = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, options));
	return { server, client: { client_id: openid.client_id }, options };
}

async function askIssuer(openid) {
	const { server } = await connect(openid);
	const [state, nonce, verifier] = [oauth.generateRandomState(), oauth.generateRandomNonce(), oauth.generateRandomCodeVerifier()];
	save("sign-in", { state, nonce, verifier, returnTo: returnTo.href }, "sessionStorage");
	const url = new URL(server.authorization_endpoint);
	const parameters = {
		client_id: openid.client_id,
		redirect_uri: REDIRECT_URI,
		response_type: "code",
		scope: openid.scope,
		audience: openid.audience,
		state,
		nonce,
		code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
		code_challenge_method: "S256",
		prompt: load("signed-out") ? "login" : undefined, // the next visitor may be another person
	};
	for (const [name, value] of Object.entries(parameters)) if (value) url.searchParams.set(name, value);
	if (!/^https?:$/.test(url.protocol)) throw new Error(`the issuer's page has the scheme ${url.protocol}`);
	location.replace(url);
}

async function takeToken(openid) {
	save("sign-in", null, "sessionStorage"); // a code is exchanged once
	const { server, client, options } = await connect(openid);
	const answer = oauth.validateAuthResponse(server, client, query, attempt?.state ?? "");
	const reply = await oauth.authorizationCodeGrantRequest(server, client, oauth.None(), answer, REDIRECT_URI, attempt.verifier, options);
	const tokens = await oauth.processAuthorizationCodeResponse(server, client, reply, { expectedNonce: attempt.nonce, requireIdToken: true });
	save("token", openid.audience ? tokens.access_token : tokens.id_token, "sessionStorage");
	save("signed-out", null);
	location.replace(returnTo);
}

function show(title, detail = "") {
	document.title = title;
	document.getElementById("title").textContent = title;
	document.getElementById("detail").textContent = detail;
}

function showFailure(error) {
	console.warn(error);
	document.body.dataset.phase = "error";
	show(...(isSecureContext ? words.signInFailed : words.insecure));
	Object.assign(document.getElementById("back"), { href: returnTo, textContent: words.back, hidden: false });
}

document.documentElement.lang = words.tag;
showBrand(words);
show(words.signingIn);
try {
	if (!isSecureContext) throw new Error("PKCE needs HTTPS: browsers have crypto.subtle only there");
	const openid = await settings();
	await (isAnswer ? takeToken(openid) : askIssuer(openid));
} catch (error) {
	showFailure(error);
}
