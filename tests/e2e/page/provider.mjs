// A real OpenID provider for the tests of signing in on the page. Prints its URL once it listens. Anyone may log in
// under any name. Each algorithm has a public client of its name. The client "access" gets an access token for the
// `audience` of its authorization request. Prints each authorization request.

import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const KEYS = { RS256: ["rsa", { modulusLength: 2048 }], ES256: ["ec", { namedCurve: "P-256" }], EdDSA: ["ed25519"] };
const PAGE = /^http:\/\/127\.\d+\.\d+\.\d+:\d+\/sign-in\/$/;

const keys = Object.entries(KEYS).map(([alg, kind]) => ({ ...generateKeyPairSync(...kind).privateKey.export({ format: "jwk" }), alg, use: "sig", kid: alg }));
const client = (client_id, alg) => ({
	client_id,
	token_endpoint_auth_method: "none",
	id_token_signed_response_alg: alg,
	redirect_uris: ["http://127.0.0.1/sign-in/"],
});
const clients = [...Object.keys(KEYS).map((alg) => client(alg, alg)), client("access", "RS256")];

const resourceIndicators = {
	enabled: true,
	defaultResource: ({ oidc }, { clientId }) => (clientId === "access" ? oidc.params.audience : undefined),
	getResourceServerInfo: (_, audience) => ({ audience, scope: "email", accessTokenFormat: "jwt", jwt: { sign: { alg: "RS256" } } }),
	useGrantedResource: () => true,
};

const server = createServer().listen(0, "127.0.0.1", () => {
	const url = `http://127.0.0.1:${server.address().port}`;
	const provider = new Provider(url, {
		clients,
		jwks: { keys },
		clientBasedCORS: () => true,
		cookies: { keys: ["for tests"] },
		claims: { openid: ["sub"], email: ["email"] },
		extraParams: ["audience"],
		features: { resourceIndicators },
	});
	// Each edge of the tests has its own port.
	provider.Client.prototype.redirectUriAllowed = (uri) => PAGE.test(uri);
	server.on("request", ({ url: path }) => path.startsWith("/auth?") && console.log(`asked ${path}`));
	server.on("request", provider.callback());
	console.log(`provider at ${url}`);
});
