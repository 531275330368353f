//! Signing in on the page, with a real `OpenID` provider.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use reqwest::Url;
use serde_json::{Value, json};
use support::browser::{Browser, PHONE};
use support::edge::{ProcessGroup, Runtime, World, emptied, root, tool};
use support::examples::example;
use support::{SOON, eventually};

use super::super::edge::key_server::{Answer, KeyServer};
use super::{CODE, PHASE, SHORT_WAITS, STATE, in_browser, limits, text, visit};

const USER: &str = "document.getElementById('user')?.textContent ?? null";
const TOKEN: &str = "JSON.parse(sessionStorage['claimgate:token'] ?? null)";
const HAS_SIGN_IN: &str = "document.getElementById('sign-in')?.checkVisibility() ?? false";
const HAS_LOGIN: &str = "document.querySelector('[name=login]') !== null";
const CALLED: &str = "performance.getEntriesByType('resource').map(({ name }) => new URL(name).origin)\
    .every(origin => origin === location.origin)";

/// A provider on this machine.
struct Provider {
    name: String,
    url: String,
    log: PathBuf,
    _process: ProcessGroup,
}

impl Provider {
    /// Starts a provider with a directory of this name.
    async fn start(name: &str) -> Self {
        let directory = emptied(&format!("provider-{name}"));
        let log = directory.join("log");
        let mut command = Command::new(tool("node"));
        command.arg(root().join("tests/e2e/page/provider.mjs"));
        let process = ProcessGroup::start(&command, &log, &directory.join("state"));
        let url = eventually(SOON, || async {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let url = text.lines().find_map(|line| line.strip_prefix("provider at "));
            url.map(str::to_owned).ok_or(text)
        })
        .await;
        Self { name: name.to_owned(), url, log, _process: process }
    }

    /// Starts a world whose visitors sign in as the client of this algorithm.
    async fn world(&self, algorithm: &str) -> World {
        let documented = example("docs/login.md", "OIDC_CLIENT_ID=acme-drop");
        let client = documented.trim().replace("acme-drop", algorithm);
        let variables = [
            ("USER_JWT_KEY", ""),
            ("USER_JWT_ISS", &self.url),
            ("USER_JWT_AUD", algorithm),
            client.split_once('=').expect("one setting"),
        ];
        let name = format!("page-sign-in-{}-{algorithm}", self.name);
        World::start(Runtime::from_env(), &name, "test", &variables).await
    }

    /// Returns the parameters of the latest authorization request.
    fn asked(&self) -> HashMap<String, String> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let path = log.lines().rev().find_map(|line| line.strip_prefix("asked "));
        let url: Url = format!("{}{}", self.url, path.expect("an authorization request")).parse().unwrap();
        url.query_pairs().into_owned().collect()
    }

    /// Logs in at the provider, which asks for a name and then for consent.
    async fn log_in(&self, page: &Browser, user: &str) {
        page.until(&format!("{HAS_LOGIN} || document.body.innerText"), true).await;
        assert_eq!(page.eval("location.origin").await, json!(self.url));
        let form = format!(
            "(() => {{ document.querySelector('[name=login]').value = '{user}';
                document.querySelector('[name=password]').value = 'any'; }})()"
        );
        page.eval(&form).await;
        page.press("[type=submit]").await;
        page.until("document.querySelector('[name=prompt]')?.value ?? null", "consent").await;
        page.press("[type=submit]").await;
    }
}

async fn press_sign_in(page: &Browser) {
    page.until(HAS_SIGN_IN, true).await;
    // The campaign moves the button when it arrives.
    page.until(STATE, "open").await;
    page.press("#sign-in").await;
}

/// Signs alice in on the page of the campaign `page-signed`, and claims.
async fn sign_in_and_claim(page: &Browser, provider: &Provider) {
    press_sign_in(page).await;
    provider.log_in(page, "alice").await;
    page.until(USER, "Signed in as alice").await;
    assert_eq!(page.eval("location.search").await, "?campaign=page-signed");
    page.press("#claim").await;
    page.until(PHASE, "won").await;
}

#[test]
fn a_visitor_signs_in_claims_and_signs_out() {
    in_browser("a_visitor_signs_in_claims_and_signs_out", async {
        let provider = Provider::start("visitors").await;
        let world = provider.world("RS256").await;
        world.core.create("page-signed", limits()).await;
        let page = visit(&world, "page-signed", "").await;
        page.until(CODE, "unauthenticated").await;
        page.until(HAS_SIGN_IN, true).await;
        assert_eq!(page.eval(CALLED).await, true, "no third party is called before the visitor signs in");
        page.check_layout("11-sign-in").await;
        sign_in_and_claim(&page, &provider).await;
        page.check_layout("11-signed-in").await;
        let claim = text(&page, "claim-id").await;

        let other_device = Browser::open("page-signed-elsewhere", PHONE).await;
        let short_waits = json!({"source": SHORT_WAITS});
        other_device.devtools("Page.addScriptToEvaluateOnNewDocument", short_waits).await;
        other_device.goto(&world.edge.url("/?campaign=page-signed")).await;
        press_sign_in(&other_device).await;
        provider.log_in(&other_device, "alice").await;
        other_device.until("document.getElementById('claim-id')?.textContent ?? null", claim.as_str()).await;
        other_device.close_after_visit_to(&provider.url).await;

        page.press("#sign-out").await;
        page.until(HAS_SIGN_IN, true).await;
        assert_eq!((page.eval(TOKEN).await, page.eval(USER).await), (Value::Null, json!("")));
        page.reload().await;
        // The provider's session would sign alice in again, but the next visitor may be another person.
        press_sign_in(&page).await;
        provider.log_in(&page, "bob").await;
        page.until(USER, "Signed in as bob").await;
        assert_eq!(world.core.sql().until("page-signed", 1).await.len(), 1);
        page.close_after_visit_to(&provider.url).await;
    });
}

#[test]
fn tokens_of_the_other_algorithms_are_accepted() {
    in_browser("tokens_of_the_other_algorithms_are_accepted", async {
        let provider = Provider::start("algorithms").await;
        for algorithm in ["ES256", "EdDSA"] {
            let world = provider.world(algorithm).await;
            world.core.create("page-signed", limits()).await;
            let page = visit(&world, "page-signed", "").await;
            sign_in_and_claim(&page, &provider).await;
            assert_eq!(world.core.sql().until("page-signed", 1).await[0].user_id, "alice");
            page.close_after_visit_to(&provider.url).await;
        }
    });
}

#[test]
fn the_page_sends_the_access_token_if_an_audience_is_set() {
    const AUDIENCE: &str = "https://drops.example/";
    in_browser("the_page_sends_the_access_token_if_an_audience_is_set", async {
        let provider = Provider::start("access").await;
        let variables = [
            ("USER_JWT_KEY", ""),
            ("USER_JWT_ISS", &provider.url),
            ("USER_JWT_AUD", AUDIENCE),
            ("OIDC_CLIENT_ID", "access"),
            ("OIDC_SCOPE", "openid email"),
            ("OIDC_AUDIENCE", AUDIENCE),
        ];
        let world = World::start(Runtime::from_env(), "page-sign-in-access", "test", &variables).await;
        world.core.create("page-access", limits()).await;
        let page = visit(&world, "page-access", "").await;
        press_sign_in(&page).await;
        provider.log_in(&page, "alice").await;
        page.until(USER, "Signed in as alice").await;
        let asked = provider.asked();
        assert_eq!((asked["audience"].as_str(), asked["scope"].as_str()), (AUDIENCE, "openid email"));
        let token = page.eval(TOKEN).await;
        let parts: Vec<_> = token.as_str().expect("a token").split('.').map(decoded).collect();
        assert_eq!((&parts[0]["typ"], &parts[1]["aud"]), (&json!("at+jwt"), &json!(AUDIENCE)), "{parts:?}");
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        assert_eq!(world.core.sql().until("page-access", 1).await[0].user_id, "alice");
        page.close_after_visit_to(&provider.url).await;
    });
}

/// Returns a part of a token as JSON; null for the signature.
fn decoded(part: &str) -> Value {
    let bytes = URL_SAFE_NO_PAD.decode(part).expect("base64url");
    serde_json::from_slice(&bytes).unwrap_or_default()
}

#[test]
fn a_sign_in_that_fails_leads_back_to_the_page() {
    in_browser("a_sign_in_that_fails_leads_back_to_the_page", async {
        let provider = Provider::start("cancelled").await;
        let world = provider.world("ES256").await;
        world.core.create("page-cancelled", limits()).await;
        let page = visit(&world, "page-cancelled", "&lang=zh").await;
        press_sign_in(&page).await;
        page.until(HAS_LOGIN, true).await;
        page.press("a[href$=abort]").await;
        page.until(PHASE, "error").await;
        assert_eq!(text(&page, "title").await, "尚未登录");
        page.check_layout("11-not-signed-in").await;
        page.press("#back").await;
        page.until(HAS_SIGN_IN, true).await;
        assert_eq!(page.eval("location.search").await, "?campaign=page-cancelled&lang=zh");

        // A response that this tab did not ask for, and one that was already used.
        for query in ["code=x&state=y", "code=x", "state=", "error=access_denied&state=y"] {
            page.goto(&world.edge.url(&format!("/sign-in/?{query}"))).await;
            let shows = format!("{PHASE} === 'error' || {HAS_LOGIN}");
            page.until(&shows, true).await;
            assert_eq!(page.eval(TOKEN).await, Value::Null, "{query}");
        }
        // A link cannot send the visitor to another site afterwards.
        page.goto(&world.edge.url("/sign-in/?return_to=https://evil.example/")).await;
        provider.log_in(&page, "alice").await;
        page.until("location.pathname + document.title", "/claimgate").await;
        assert_eq!(page.eval("location.origin").await, json!(world.edge.url("")));
        page.close_after_visit_to(&provider.url).await;
    });
}

#[test]
fn sign_in_url_replaces_the_built_in_sign_in() {
    in_browser("sign_in_url_replaces_the_built_in_sign_in", async {
        let shop = KeyServer::start(Answer::json(&json!({})));
        shop.answer(
            "/login",
            Answer::Complete(200, "Content-Type: text/html\r\n".to_owned(), "shop".to_owned()),
        );
        let link = shop.url("/login?from=drop");
        let world =
            World::start(Runtime::from_env(), "page-sign-in-link", "test", &[("SIGN_IN_URL", &link)]).await;
        world.core.create("page-linked", limits()).await;
        let page = visit(&world, "page-linked", "").await;
        press_sign_in(&page).await;
        page.until("location.origin", shop.url("").as_str()).await;
        let query = page.eval("[...new URLSearchParams(location.search)]").await;
        assert_eq!(query, json!([["from", "drop"], ["return_to", world.edge.url("/?campaign=page-linked")]]));
        // The shop sends its visitors back with a token.
        page.goto(&world.edge.url(&format!("/?campaign=page-linked#token={}", world.token("alice")))).await;
        page.until(USER, "Signed in as alice").await;
        page.close_after_visit_to(&shop.url("")).await;
    });
}

#[test]
fn an_ended_campaign_asks_for_a_sign_in_only_to_see_a_claim() {
    in_browser("an_ended_campaign_asks_for_a_sign_in_only_to_see_a_claim", async {
        let link = [("SIGN_IN_URL", "https://shop.example/login")];
        let world = World::start(Runtime::from_env(), "page-sign-in-late", "test", &link).await;
        world.core.create("page-late", limits()).await;
        let claim = world.claim("page-late", "alice", "k").await.expect(201).json();
        let _ = world.core.set_admin_state("page-late", "end").await.expect(200);
        let page = visit(&world, "page-late", "").await;
        page.until(STATE, "ended").await;
        page.until(HAS_SIGN_IN, true).await;
        assert_eq!(text(&page, "message").await, "", "signing in is optional");
        let detail = text(&page, "detail").await;
        assert!(detail.ends_with("Granted claims stay valid. Sign in to see yours."), "{detail}");
        page.check_layout("11-sign-in-late").await;
        let token = world.token("alice");
        page.goto(&world.edge.url(&format!("/?campaign=page-late&lang=en#token={token}"))).await;
        let id = claim["claim"]["id"].as_str().unwrap();
        page.until("document.getElementById('claim-id').textContent", id).await;
        page.close().await;
    });
}

#[test]
fn the_oauth4webapi_copy_matches_the_npm_package() {
    for (ours, theirs) in [("oauth4webapi.js", "build/index.js"), ("oauth4webapi.LICENSE", "LICENSE.md")] {
        let same = fs::read(root().join("edge/assets/sign-in").join(ours)).unwrap()
            == fs::read(root().join("node_modules/oauth4webapi").join(theirs)).unwrap();
        assert!(same, "the copy differs: cp node_modules/oauth4webapi/{theirs} edge/assets/sign-in/{ours}");
    }
}
