//! The settings of docs/login.md: each provider's block, with a token and a key set as the provider documents them.
//!
//! The documented service is not called: servers of this test replace the hosts, and keys replace `SECRET`.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use claimgate_client::UserIdRule;
use serde_json::{Value, json};
use support::Reply;
use support::edge::{Runtime, World};
use support::examples::example;
use support::times::now_ms;

use super::key_server::{Answer, DISCOVERY, KeyServer};
use super::run;
use super::tokens::{MEMBERS, SUBJECT};
use support::issuer::{Issuer, unsigned};

const DOCUMENT: &str = "docs/login.md";
/// The placeholder for a key in the blocks.
const PLACEHOLDER: &str = "SECRET";
const USER_ID_KEY: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";

const AUDIENCE: &str = "wrong audience";
const REQUIRED: &str = "a required token claim is missing or has a different value";
const USER_CLAIM: &str = "the claim with the user's id is missing or has the wrong type";
const UUID: &str = "7335d417-61da-459d-899c-0a01c76a2f94";

/// The user id that a token gives.
enum UserId {
    Verbatim(&'static str),
    /// The HMAC of this value.
    Hmac(&'static str),
}

/// A provider as it documents its tokens and keys.
struct Provider {
    /// The beginning of its block.
    block: &'static str,
    /// Where the keys are published, if the block leaves that to discovery.
    jwks_path: Option<&'static str>,
    /// The response with the keys; `None` for a shared secret.
    key_set: Option<Answer>,
    /// The key that signs; `None` for a shared secret.
    signer: Option<&'static Issuer>,
    token_header: Value,
    /// The header that carries the token, unless it is `Authorization`.
    carrier: Option<&'static str>,
    /// The claims besides `iss`, `iat` and `exp`.
    claims: Value,
    user_id: UserId,
    /// Changes of the claims, `null` to remove one, with the reason for which the token is then rejected.
    wrong: Vec<(Value, &'static str)>,
}

/// The settings of a block, with the servers that replace its hosts.
struct Settings {
    variables: Vec<(String, String)>,
    servers: Vec<(String, KeyServer)>,
}

impl Settings {
    fn of(block: &str) -> Self {
        let mut settings = Self { variables: Vec::new(), servers: Vec::new() };
        for line in example(DOCUMENT, block).lines() {
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            let value = match name {
                "USER_JWT_ISS" | "USER_JWT_JWKS_URL" => settings.on_this_machine(value),
                _ => value.to_owned(),
            };
            settings.variables.push((name.to_owned(), value));
        }
        settings
    }

    /// Returns the URL with its host replaced by a server; anything else unchanged.
    fn on_this_machine(&mut self, value: &str) -> String {
        let Some(rest) = value.strip_prefix("https://") else { return value.to_owned() };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if self.servers.iter().all(|(known, _)| known != host) {
            self.servers.push((host.to_owned(), KeyServer::empty()));
        }
        let (_, server) = self.servers.iter().find(|(known, _)| known == host).expect("a server");
        server.url(path)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn issuer(&self) -> &str {
        self.get("USER_JWT_ISS").expect("an issuer")
    }

    /// Publishes the provider's keys, and returns the URLs that the edge must fetch.
    fn publish(&self, provider: &Provider) -> Vec<String> {
        let Some(key_set) = &provider.key_set else { return Vec::new() };
        match (self.get("USER_JWT_JWKS_URL"), provider.jwks_path) {
            (Some(url), None) => {
                self.answer(url, key_set.clone());
                vec![url.to_owned()]
            }
            (None, Some(path)) => {
                let jwks_uri = self.server(self.issuer()).url(path);
                let document = format!("{}{DISCOVERY}", self.issuer().trim_end_matches('/'));
                let discovery = json!({
                    "issuer": self.issuer(),
                    "jwks_uri": jwks_uri,
                    "response_types_supported": ["code", "id_token"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                });
                self.answer(&document, Answer::json(&discovery));
                self.answer(&jwks_uri, key_set.clone());
                vec![document, jwks_uri]
            }
            both => panic!("keys from a URL or by discovery: {both:?}"),
        }
    }

    /// Returns the server of a URL.
    fn server(&self, url: &str) -> &KeyServer {
        let mut servers = self.servers.iter().map(|(_, server)| server);
        servers.find(|server| url.starts_with(&server.url("/"))).expect("a server")
    }

    fn answer(&self, url: &str, answer: Answer) {
        let server = self.server(url);
        server.answer(url.strip_prefix(&server.url("")).expect("a path"), answer);
    }

    /// Returns the URLs that the edge has fetched.
    fn fetched(&self) -> BTreeSet<String> {
        self.servers.iter().flat_map(|(_, server)| server.requested()).collect()
    }

    /// Starts a world with these settings and no other.
    async fn world(&self, name: &str) -> World {
        let is_secret = self.get("USER_JWT_KEY") == Some(PLACEHOLDER);
        // The world sets its own secret.
        let mut variables = if is_secret { Vec::new() } else { vec![("USER_JWT_KEY", "")] };
        variables.extend(self.variables.iter().filter_map(|(name, value)| {
            match (name.as_str(), value.as_str()) {
                ("USER_JWT_KEY", PLACEHOLDER) => None,
                ("USER_ID_KEY", PLACEHOLDER) => Some((name.as_str(), USER_ID_KEY)),
                (_, PLACEHOLDER) => panic!("{name} is not a secret"),
                setting => Some(setting),
            }
        }));
        let world =
            World::start(Runtime::from_env(), &format!("edge-login-{name}"), "test", &variables).await;
        world.core.create("login", json!({"total": 10})).await;
        world
    }

    /// Returns the id that the settings give the user, as a back end computes it.
    fn user_id(&self, documented: &UserId) -> String {
        match (self.get("USER_ID_FORM"), documented) {
            (None, UserId::Verbatim(value)) => (*value).to_owned(),
            (Some("hmac"), UserId::Hmac(value)) => {
                let claim = self.get("USER_ID_CLAIM").unwrap_or("sub");
                let rule = UserIdRule::hmac(claim, self.issuer(), USER_ID_KEY.parse().expect("a key"));
                rule.user_id(value).expect("an id").as_str().to_owned()
            }
            (form, _) => panic!("the block has another USER_ID_FORM: {form:?}"),
        }
    }
}

impl Provider {
    fn claims(&self, issuer: &str, changes: &Value) -> Value {
        let now_s = now_ms() / 1000;
        let mut claims = self.claims.clone();
        (claims["iss"], claims["iat"], claims["exp"]) = (json!(issuer), json!(now_s), json!(now_s + 600));
        for (name, value) in changes.as_object().expect("claims") {
            if value.is_null() {
                claims.as_object_mut().expect("claims").remove(name);
            } else {
                claims[name] = value.clone();
            }
        }
        claims
    }

    fn token(&self, world: &World, claims: &Value) -> String {
        match self.signer {
            Some(signer) => signer.token(&self.token_header, claims),
            None => world.token_of(&self.token_header, claims),
        }
    }

    async fn claim(&self, world: &World, token: &str) -> Reply {
        // Without a key, a claim is not sent again, even if the edge could not fetch the keys in time.
        let request = world.request("POST", "/v1/campaigns/login/claims").header("Idempotency-Key", "k");
        let request = request.json(&json!({}));
        let request = match self.carrier {
            Some(header) => request.header(header, token),
            None => request.bearer_auth(token),
        };
        world.send(request).await
    }

    /// Returns a token with valid claims, signed by someone else.
    fn forged(&self, claims: &Value) -> String {
        match self.signer {
            Some(Issuer::P256(_)) => Issuer::p256().token(&self.token_header, claims),
            Some(_) => forger().token(&self.token_header, claims),
            // An HMAC has 32 bytes, which are 43 characters.
            None => format!("{}.{}", unsigned(&self.token_header, claims), "A".repeat(43)),
        }
    }

    /// Checks that the block's settings accept the documented token and no other.
    async fn check(self, name: &str) {
        let settings = Settings::of(self.block);
        let published = BTreeSet::from_iter(settings.publish(&self));
        let world = settings.world(name).await;
        let right = self.claims(settings.issuer(), &json!({}));
        let made = self.claim(&world, &self.token(&world, &right)).await.expect(201).json();
        assert_eq!(made["claim"]["user_id"], settings.user_id(&self.user_id), "{name}");

        let mut wrong: Vec<_> = self
            .wrong
            .iter()
            .map(|(changes, reason)| {
                (changes.to_string(), self.token(&world, &self.claims(settings.issuer(), changes)), *reason)
            })
            .collect();
        let elsewhere = self.claims("https://other.example/", &json!({}));
        wrong.push(("another issuer".to_owned(), self.token(&world, &elsewhere), "wrong issuer"));
        wrong.push(("another key".to_owned(), self.forged(&right), "wrong signature"));
        for (what, token, reason) in wrong {
            let refused = self.claim(&world, &token).await;
            assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"), "{name}: {what}");
            let detail = refused.json()["detail"].as_str().expect("a detail").to_owned();
            assert!(detail.ends_with(&format!(": {reason}")), "{name}: {what}: {detail}");
        }
        assert_eq!(settings.fetched(), published, "{name}");
        assert_eq!(world.core.campaign("login").await["remaining"], 9, "{name}");
    }
}

/// An RSA key that providers publish besides the one that signs.
fn other_rsa() -> &'static Issuer {
    static OTHER: OnceLock<Issuer> = OnceLock::new();
    OTHER.get_or_init(Issuer::rsa)
}

/// An RSA key that no provider publishes.
fn forger() -> &'static Issuer {
    static FORGER: OnceLock<Issuer> = OnceLock::new();
    FORGER.get_or_init(Issuer::rsa)
}

fn shared_p256() -> &'static Issuer {
    static SHARED: OnceLock<Issuer> = OnceLock::new();
    SHARED.get_or_init(Issuer::p256)
}

/// Returns the two RSA keys as a set: the key that does not sign, and the key that does. Each gets its `kid`
/// and these members.
fn two_keys(other_kid: &str, kid: &str, members: &Value) -> Vec<Value> {
    [(other_rsa(), other_kid), (Issuer::shared_rsa(), kid)]
        .map(|(issuer, kid)| {
            let mut key = issuer.jwk(members);
            key["kid"] = json!(kid);
            key
        })
        .to_vec()
}

/// Members with a certificate, which the edge ignores.
fn with_certificate(mut members: Value, issuer: &Issuer) -> Value {
    members["x5c"] = json!([issuer.pem_body()]);
    members["x5t"] = json!("NjVBRjY5MDlCMUIwNzU4RTA2QzZFMDQ4QzQ2MDAyQjVDNjk1RTM2Qg");
    members
}

fn own_back_end() -> Provider {
    Provider {
        block: "USER_JWT_ISS=shop\n",
        jwks_path: None,
        key_set: None,
        signer: None,
        token_header: json!({"alg": "HS256", "typ": "JWT"}),
        carrier: None,
        claims: json!({"aud": "claims", "sub": "customer-4711"}),
        user_id: UserId::Verbatim("customer-4711"),
        wrong: vec![
            (json!({"aud": "shop"}), AUDIENCE),
            (json!({"sub": null}), MEMBERS),
            (json!({"sub": "a b"}), SUBJECT),
        ],
    }
}

fn supabase() -> Provider {
    let kid = "b1a4c2f0-3d5e-4f6a-8b7c-9d0e1f2a3b4c";
    let key = json!({"alg": "ES256", "ext": true, "key_ops": ["verify"], "use": "sig", "kid": kid});
    Provider {
        block: "USER_JWT_ISS=https://acmeacmeacmeacmeacme.supabase.co/auth/v1\n",
        jwks_path: None,
        key_set: Some(Answer::keys(&[shared_p256().jwk(&key)])),
        signer: Some(shared_p256()),
        token_header: json!({"alg": "ES256", "kid": kid, "typ": "JWT"}),
        carrier: None,
        claims: json!({
            "aal": "aal1",
            "amr": [{"method": "password", "timestamp": 1_640_991_600}],
            "app_metadata": {"provider": "email", "providers": ["email"]},
            "aud": "authenticated",
            "email": "user@example.com",
            "phone": "",
            "role": "authenticated",
            "session_id": "123e4567-e89b-12d3-a456-426614174000",
            "sub": UUID,
            "user_metadata": {"name": "John Doe"},
            "is_anonymous": false,
        }),
        user_id: UserId::Verbatim(UUID),
        wrong: vec![(json!({"is_anonymous": true}), REQUIRED), (json!({"aud": "anon"}), AUDIENCE)],
    }
}

fn auth0() -> Provider {
    let key = with_certificate(json!({"alg": "RS256", "use": "sig"}), Issuer::shared_rsa());
    Provider {
        block: "USER_JWT_ISS=https://acme.eu.auth0.com/\n",
        jwks_path: Some("/.well-known/jwks.json"),
        key_set: Some(Answer::keys(&two_keys("kQ2sWn8vXhYb", "Njo3tQmVZ0aE", &key))),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "typ": "JWT", "kid": "Njo3tQmVZ0aE"}),
        carrier: None,
        claims: json!({
            "aud": ["https://claims.acme.example", "https://acme.eu.auth0.com/userinfo"],
            "azp": "acmeClientId",
            "scope": "openid profile email",
            "sub": "auth0|6512ab34cd56ef7890ab12cd",
        }),
        user_id: UserId::Hmac("auth0|6512ab34cd56ef7890ab12cd"),
        wrong: vec![
            (json!({"aud": ["https://other.acme.example", "https://acme.eu.auth0.com/userinfo"]}), AUDIENCE),
            (json!({"aud": "acmeClientId"}), AUDIENCE),
        ],
    }
}

fn cognito() -> Provider {
    let client = "7g4acmeacmeacmeacmeacme12";
    Provider {
        block: "USER_JWT_ISS=https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_AcmeAcme1\n",
        jwks_path: Some("/eu-central-1_AcmeAcme1/.well-known/jwks.json"),
        key_set: Some(Answer::keys(&two_keys(
            "idTokens1234example=",
            "1234example=",
            &json!({"alg": "RS256", "use": "sig"}),
        ))),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": "1234example="}),
        carrier: None,
        claims: json!({
            "sub": UUID,
            "cognito:groups": ["testgroup"],
            "version": 2,
            "client_id": client,
            "origin_jti": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "event_id": "64f513be-32db-42b0-b78e-b02127b4f463",
            "token_use": "access",
            "scope": "openid",
            "auth_time": 1_676_312_777,
            "jti": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "username": "my-test-user",
        }),
        user_id: UserId::Verbatim(UUID),
        wrong: vec![
            (json!({"client_id": "another1acmeacmeacmeacme1"}), REQUIRED),
            (json!({"token_use": "id"}), REQUIRED),
            // An ID token has the client in `aud`.
            (json!({"token_use": "id", "client_id": null, "aud": client}), REQUIRED),
        ],
    }
}

fn firebase() -> Provider {
    let keys = two_keys("9f8e7d6c5b4a", "1a2b3c4d5e6f", &json!({"alg": "RS256", "use": "sig"}));
    let cached = "Cache-Control: public, max-age=19204, must-revalidate, no-transform\r\n".to_owned();
    Provider {
        block: "USER_JWT_ISS=https://securetoken.google.com/acme-shop\n",
        jwks_path: None,
        key_set: Some(Answer::Complete(200, cached, json!({"keys": keys}).to_string())),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": "1a2b3c4d5e6f", "typ": "JWT"}),
        carrier: None,
        claims: json!({
            "aud": "acme-shop",
            "auth_time": 1_676_312_777,
            "user_id": "Xq3ZtTmR0bUhc1kLrP9sWvYe2Dn1",
            "sub": "Xq3ZtTmR0bUhc1kLrP9sWvYe2Dn1",
            "email": "user@example.com",
            "email_verified": true,
            "firebase": {"identities": {"email": ["user@example.com"]}, "sign_in_provider": "password"},
        }),
        user_id: UserId::Verbatim("Xq3ZtTmR0bUhc1kLrP9sWvYe2Dn1"),
        wrong: vec![
            (json!({"aud": "another-project"}), AUDIENCE),
            (json!({"iss": "https://securetoken.google.com/another-project"}), "wrong issuer"),
        ],
    }
}

fn clerk() -> Provider {
    let kid = "ins_2AcmeAcmeAcmeAcmeAcmeAcme1";
    let key = Issuer::shared_rsa().jwk(&json!({"alg": "RS256", "use": "sig", "kid": kid}));
    Provider {
        block: "USER_JWT_ISS=https://clerk.acme.example\n",
        jwks_path: None,
        key_set: Some(Answer::keys(&[key])),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": kid, "typ": "JWT"}),
        carrier: None,
        claims: json!({
            "azp": "https://shop.acme.example",
            "fva": [7, -1],
            "jti": "1234567890",
            "nbf": 1_713_158_400,
            "sid": "sess_2AcmeAcmeAcmeAcmeAcmeAcme1",
            "sub": "user_2AcmeAcmeAcmeAcmeAcmeAcme1",
            "v": 2,
            "pla": "u:free",
        }),
        user_id: UserId::Verbatim("user_2AcmeAcmeAcmeAcmeAcmeAcme1"),
        wrong: vec![
            (json!({"azp": "https://evil.example"}), REQUIRED),
            (json!({"azp": "https://shop.acme.example.evil.example"}), REQUIRED),
            (json!({"azp": null}), REQUIRED),
        ],
    }
}

fn okta() -> Provider {
    Provider {
        block: "USER_JWT_ISS=https://acme.okta.com/oauth2/default\n",
        jwks_path: Some("/oauth2/default/v1/keys"),
        key_set: Some(Answer::keys(&two_keys(
            "fAomAvsWyAWDlnBuJbHo",
            "ZkvelLNseik7w4pcprCc",
            &json!({"alg": "RS256", "use": "sig"}),
        ))),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": "ZkvelLNseik7w4pcprCc"}),
        carrier: None,
        claims: json!({
            "ver": 1,
            "jti": "AT.0mP4JKAZX1iACIT4vbEDF7LpvDVjxypPMf0D7uX39RE",
            "aud": "api://default",
            "sub": "user@example.com",
            "cid": "nmdP1fcyvdVO11AL7ECm",
            "uid": "00ujmkLgagxeRrAg20g3",
            "scp": ["openid", "email"],
        }),
        user_id: UserId::Verbatim("00ujmkLgagxeRrAg20g3"),
        wrong: vec![
            (json!({"aud": "https://acme.okta.com"}), AUDIENCE),
            // A token of a client, not of a user.
            (json!({"uid": null, "sub": "nmdP1fcyvdVO11AL7ECm"}), USER_CLAIM),
        ],
    }
}

fn entra_id() -> Provider {
    let mut key = with_certificate(json!({"use": "sig"}), Issuer::shared_rsa());
    key["issuer"] = json!("https://login.microsoftonline.com/{tenantid}/v2.0");
    key["cloud_instance_name"] = json!("microsoftonline.com");
    let tenant = "aaaabbbb-0000-cccc-1111-dddd2222eeee";
    Provider {
        block: "USER_JWT_ISS=https://login.microsoftonline.com/",
        jwks_path: Some("/aaaabbbb-0000-cccc-1111-dddd2222eeee/discovery/v2.0/keys"),
        key_set: Some(Answer::keys(&two_keys(
            "HlC0R12skxNZ1WQwmjOF_6t_tDE",
            "nOo3ZDrODABD1jKWhXslMN_KXEg",
            &key,
        ))),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": "nOo3ZDrODABD1jKWhXslMN_KXEg", "typ": "JWT"}),
        carrier: None,
        claims: json!({
            "aud": "00001111-aaaa-2222-bbbb-3333cccc4444",
            "nbf": 1_713_158_400,
            "name": "Anna",
            "preferred_username": "user@example.com",
            "oid": UUID,
            "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ",
            "tid": tenant,
            "groups": vec![UUID; 100],
            "ver": "2.0",
        }),
        user_id: UserId::Verbatim(UUID),
        wrong: vec![
            (json!({"aud": "00000003-0000-0000-c000-000000000000"}), AUDIENCE),
            (json!({"iss": format!("https://sts.windows.net/{tenant}/"), "ver": "1.0"}), "wrong issuer"),
            (json!({"oid": null}), USER_CLAIM),
        ],
    }
}

fn keycloak() -> Provider {
    let encrypts = with_certificate(json!({"kid": "enc", "alg": "RSA-OAEP", "use": "enc"}), other_rsa());
    let signs =
        with_certificate(json!({"kid": "FJ86GcF3jTb", "alg": "RS256", "use": "sig"}), Issuer::shared_rsa());
    let user = "f:0d7e1c9a-5b3f-4c2d-8e6a-1f2b3c4d5e6f:anna";
    Provider {
        block: "USER_JWT_ISS=https://login.acme.example/realms/acme\n",
        jwks_path: Some("/realms/acme/protocol/openid-connect/certs"),
        key_set: Some(Answer::keys(&[other_rsa().jwk(&encrypts), Issuer::shared_rsa().jwk(&signs)])),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "typ": "JWT", "kid": "FJ86GcF3jTb"}),
        carrier: None,
        claims: json!({
            "jti": "onrtac:5d1f6c1e-0a6b-4a4e-9f0e-3c5b7f6f1b2a",
            "aud": ["acme-claims", "account"],
            "sub": user,
            "typ": "Bearer",
            "azp": "shop-page",
            "sid": "8f2d7c3e-1b4a-4d5e-9c6f-7a8b9c0d1e2f",
            "scope": "openid profile email",
            "preferred_username": "anna",
        }),
        user_id: UserId::Hmac(user),
        wrong: vec![
            (json!({"aud": "account"}), AUDIENCE),
            (json!({"aud": null}), MEMBERS),
            (json!({"aud": "shop-page", "typ": "ID"}), AUDIENCE),
        ],
    }
}

fn cloudflare_access() -> Provider {
    let current = "6c3bffef71bb0a90c9cbef3b7c0d4a1c7b4b8b76b80292a623afd9dac45d1c65";
    let previous = "1a1c3986a44ce6390be42ec772b031df8f433fdc71716db821dc0c39af3bce49";
    let keys = two_keys(previous, current, &json!({"alg": "RS256", "use": "sig"}));
    let certificate = |kid: &str, issuer: &Issuer| {
        let cert = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", issuer.pem_body());
        json!({"kid": kid, "cert": cert})
    };
    let set = json!({
        "keys": keys,
        "public_cert": certificate(current, Issuer::shared_rsa()),
        "public_certs": [certificate(previous, other_rsa()), certificate(current, Issuer::shared_rsa())],
    });
    Provider {
        block: "USER_JWT_ISS=https://acme.cloudflareaccess.com\n",
        jwks_path: None,
        key_set: Some(Answer::json(&set)),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": current, "typ": "JWT"}),
        carrier: Some("Cf-Access-Jwt-Assertion"),
        claims: json!({
            "aud": ["32eafc7626e974616deaf0dc3ce63d7bcbed58a2731e84d06bc3cdf1b53c4228"],
            "email": "user@example.com",
            "nbf": 1_659_474_397,
            "type": "app",
            "identity_nonce": "6ei69kawdKzMIAPF",
            "sub": UUID,
            "country": "US",
        }),
        user_id: UserId::Verbatim(UUID),
        wrong: vec![
            (json!({"aud": ["97e2aae120121f902df8bc99fc345913ab186d174f3079ea729236766b2e7c4a"]}), AUDIENCE),
            // A service token.
            (json!({"sub": "", "common_name": "e367826f93b8d71185e03fe518aff3b4.access"}), SUBJECT),
        ],
    }
}

fn apple() -> Provider {
    let user = "001393.6d621dadab04956bd129fa982ba0c1d2.1517";
    Provider {
        block: "USER_JWT_ISS=https://appleid.apple.com\n",
        jwks_path: None,
        key_set: Some(Answer::keys(&two_keys("fh6Bs8C", "W6WcOKB", &json!({"alg": "RS256", "use": "sig"})))),
        signer: Some(Issuer::shared_rsa()),
        token_header: json!({"alg": "RS256", "kid": "W6WcOKB"}),
        carrier: None,
        claims: json!({
            "aud": "example.acme.shop",
            "sub": user,
            "c_hash": "dZusyqBNIzmfd8Uv_cVKSw",
            "email": "abcd@privaterelay.appleid.com",
            "email_verified": "true",
            "is_private_email": "true",
            "auth_time": 1_587_333_749,
            "nonce_supported": true,
        }),
        user_id: UserId::Hmac(user),
        wrong: vec![
            (json!({"aud": "example.other.shop"}), AUDIENCE),
            (json!({"iss": "https://account.apple.com"}), "wrong issuer"),
        ],
    }
}

#[test]
fn the_settings_accept_tokens_of_your_own_back_end() {
    run(own_back_end().check("own"));
}

#[test]
fn the_settings_accept_tokens_of_supabase() {
    run(supabase().check("supabase"));
}

#[test]
fn the_settings_accept_tokens_of_auth0() {
    run(auth0().check("auth0"));
}

#[test]
fn the_settings_accept_tokens_of_cognito() {
    run(cognito().check("cognito"));
}

#[test]
fn the_settings_accept_tokens_of_firebase() {
    run(firebase().check("firebase"));
}

#[test]
fn the_settings_accept_tokens_of_clerk() {
    run(clerk().check("clerk"));
}

#[test]
fn the_settings_accept_tokens_of_okta() {
    run(okta().check("okta"));
}

#[test]
fn the_settings_accept_tokens_of_entra_id() {
    run(entra_id().check("entra-id"));
}

#[test]
fn the_settings_accept_tokens_of_keycloak() {
    run(keycloak().check("keycloak"));
}

#[test]
fn the_settings_accept_tokens_of_cloudflare_access() {
    run(cloudflare_access().check("cloudflare-access"));
}

#[test]
fn the_settings_accept_tokens_of_apple() {
    run(apple().check("apple"));
}
