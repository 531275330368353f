//! Passes on the page: from a link, from ALTCHA with ALTCHA's own solver, and from Turnstile against a stand-in.

use std::fs;

use claimgate_shared::Timestamp;
use claimgate_shared::jwt::Pass;
use serde_json::json;
use support::browser::{Browser, INSECURE_HOST, PHONE};
use support::edge::{Runtime, World, root};
use support::process::own_loopback;
use support::times::{from_now, now_ms};
use support::turnstile::Turnstile;

use super::super::edge::challenges::SIGNING_KEY;
use super::{
    BUTTON, CODE, PHASE, STATE, assert_message, assert_only_claim, in_browser, text, until_an_hour_later,
    user, visit, visit_on_clock,
};

const PASS: &str = "document.getElementById('pass').textContent";
const HAS_PASS: &str =
    "document.getElementById('pass').textContent.startsWith('You have a pass, valid until ')";
/// Number of solutions that the page has sent.
const PASSES: &str =
    "performance.getEntriesByType('resource').filter(({ name }) => /[/]pass$/.test(name)).length";
const KEPT: &str =
    "JSON.parse(Object.entries(sessionStorage).find(([name]) => /:pass:/.test(name))?.[1] ?? null)";

async fn world(name: &str, variables: &[(&str, &str)]) -> World {
    World::start(Runtime::from_env(), name, "local", variables).await
}

async fn altcha_world(name: &str, attempts: &str) -> World {
    let variables =
        [("CHALLENGE", "altcha"), ("PASS_SIGNING_KEY", SIGNING_KEY), ("ALTCHA_ATTEMPTS", attempts)];
    world(name, &variables).await
}

async fn turnstile_world(name: &str, service: &Turnstile) -> World {
    let mut variables = service.variables();
    variables.push(("PASS_SIGNING_KEY", SIGNING_KEY.to_owned()));
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    world(name, &variables).await
}

/// Creates a campaign that opens in this many seconds and whose claims always need a pass.
async fn create(world: &World, campaign: &str, opens_in_s: i64) {
    let rules = json!({"id": campaign, "name": "Members' sale", "starts_at": from_now(opens_in_s),
        "limits": {"total": 10, "per_user": 3}, "pass": {"required": "always"}});
    world.core.create_with(rules).await;
}

#[test]
fn the_page_solves_altcha_before_the_opening() {
    in_browser("the_page_solves_altcha_before_the_opening", async {
        let world = altcha_world("page-altcha", "200").await;
        create(&world, "page-altcha", 1000).await;
        let page = Browser::open("page-altcha", PHONE).await;
        // The page gets its pass at a random time in the 20 minutes before the opening: here immediately.
        let no_delay = json!({"source": "Math.random = () => 0;"});
        page.devtools("Page.addScriptToEvaluateOnNewDocument", no_delay).await;
        page.goto(&world.edge.url("/?campaign=page-altcha")).await;
        page.until(&format!("{PASS}.length > 0"), true).await;
        page.assert_accessible("waiting for a pass").await;
        page.until(HAS_PASS, true).await;
        assert_eq!(page.eval(STATE).await, "scheduled", "the pass was not there before the opening");
        page.check_layout("12-pass").await;
        assert_eq!(page.eval(PASSES).await, 1);
        world.core.patch("page-altcha", json!({"starts_at": from_now(-1)})).await.expect(200);
        // The pass is kept in this tab.
        page.reload().await;
        page.until(STATE, "open").await;
        page.until(HAS_PASS, true).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        assert_eq!(page.eval(PASSES).await, 0, "neither the reload nor the claim needed another pass");
        assert_only_claim(&world, &page, "page-altcha").await;
        page.close().await;
    });
}

#[test]
fn the_page_says_that_altcha_needs_https() {
    in_browser("the_page_says_that_altcha_needs_https", async {
        let world = altcha_world("page-altcha-http", "200").await;
        create(&world, "page-altcha-http", -1).await;
        let page = Browser::open("page-altcha-http", PHONE).await;
        let address = world.edge.url("/?campaign=page-altcha-http");
        page.goto(&address.replacen(&own_loopback().to_string(), INSECURE_HOST, 1)).await;
        page.until(CODE, "insecure").await;
        assert_eq!(page.eval("isSecureContext").await, false);
        assert_eq!(text(&page, "message").await, "This page needs HTTPS");
        page.until(BUTTON, true).await;
        // Not closed: that checks the console, and over plain HTTP the browser reports a header that it ignores.
    });
}

#[test]
fn a_click_waits_for_the_pass() {
    in_browser("a_click_waits_for_the_pass", async {
        let world = altcha_world("page-altcha-late", "2000").await;
        create(&world, "page-late", -60).await;
        let page = visit(&world, "page-late", "").await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        page.until(&format!("{PASS}.startsWith('Getting your pass.')"), true).await;
        assert_eq!(page.eval(PHASE).await, "sending");
        page.check_layout("12-solving").await;
        page.until(CODE, "granted").await;
        assert_only_claim(&world, &page, "page-late").await;
        page.close().await;
    });
}

#[test]
fn a_pass_that_the_edge_does_not_accept_is_renewed() {
    in_browser("a_pass_that_the_edge_does_not_accept_is_renewed", async {
        let world = altcha_world("page-altcha-renewed", "20").await;
        create(&world, "page-renewed", -60).await;
        let page = visit(&world, "page-renewed", "").await;
        page.until(HAS_PASS, true).await;
        let forge = "(() => { const name = 'claimgate:pass:page-renewed', kept = JSON.parse(sessionStorage[name]);
            kept.pass = kept.pass.replace(/[^.]+$/, 'A'.repeat(43)); sessionStorage[name] = JSON.stringify(kept); })()";
        page.eval(forge).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        let first = page.eval(KEPT).await;
        assert!(!first["pass"].as_str().unwrap().ends_with("AAAA"), "{first}");
        assert_only_claim(&world, &page, "page-renewed").await;
        page.close().await;
    });
}

#[test]
fn without_a_challenge_the_pass_comes_with_the_link() {
    in_browser("without_a_challenge_the_pass_comes_with_the_link", async {
        let world = world("page-pass-link", &[("PASS_KEYS", SIGNING_KEY)]).await;
        create(&world, "page-members", -60).await;
        let page = visit(&world, "page-members", "").await;
        assert_message(&page, "pass_required", "You need a pass", "需要通行证").await;
        assert_eq!(page.eval(BUTTON).await, true);
        page.check_layout("12-no-pass").await;
        let user = user(&page).await;
        let link = |expires_in_ms: i64| {
            let expires_at = Timestamp::from_ms(now_ms() + expires_in_ms).unwrap();
            let (user, campaign) = (user.parse().unwrap(), "page-members".parse().unwrap());
            let pass = Pass { user, campaign, expires_at, not_before: None, units: None };
            let pass = pass.sign(&SIGNING_KEY.parse().unwrap()).unwrap();
            world.edge.url(&format!("/?campaign=page-members&lang=en#pass={pass}"))
        };
        page.goto(&link(-60_000)).await;
        page.until(CODE, "pass_required").await;
        page.goto(&link(600_000)).await;
        page.reload().await;
        page.until(HAS_PASS, true).await;
        assert_eq!(page.eval("location.hash").await, "", "the pass stays out of the address");
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        assert_only_claim(&world, &page, "page-members").await;
        page.close().await;

        let presale = json!({"id": "page-presale", "name": "Presale", "starts_at": from_now(-60),
            "limits": {"total": 10}, "pass": {"required": "until", "until": from_now(3600)}});
        world.core.create_with(presale).await;
        let page = visit_on_clock(&world, "page-presale", "&lang=en").await;
        page.until(CODE, "pass_required").await;
        let detail = text(&page, "detail").await;
        assert!(detail.contains("you can claim without one"), "{detail}");
        until_an_hour_later(&page, BUTTON, false).await;
        // The edge decides by its own clock, and has this change as soon as the page shows the new name.
        let over = json!({"name": "Public sale", "pass": {"required": "until", "until": from_now(-1)}});
        world.core.patch("page-presale", over).await.expect(200);
        page.until("document.title", "Public sale").await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        page.close().await;
    });
}

#[test]
fn turnstile_gives_a_pass_alone_or_after_a_question() {
    in_browser("turnstile_gives_a_pass_alone_or_after_a_question", async {
        let service = Turnstile::start();
        let world = turnstile_world("page-turnstile", &service).await;
        for (campaign, asks) in [("page-invisible", false), ("page-asking", true)] {
            create(&world, campaign, -60).await;
            service.ask(asks);
            let page = visit(&world, campaign, "").await;
            if asks {
                page.until("document.querySelector('#widget iframe') !== null", true).await;
                page.until(&format!("{PASS}.startsWith('Getting your pass.')"), true).await;
                page.check_layout("12-question").await;
                answer(&page).await;
            }
            page.until(HAS_PASS, true).await;
            assert_eq!(page.eval("document.getElementById('widget').childElementCount").await, 0);
            page.press("#claim").await;
            page.until(CODE, "granted").await;
            assert_only_claim(&world, &page, campaign).await;
            page.close_after_visit_to(&origin(&service)).await;
        }
    });
}

/// Clicks the button in the widget's frame.
async fn answer(page: &Browser) {
    let at = page.eval("(({ left, bottom }) => ({ x: left + 40, y: bottom - 30 }))(document.querySelector('#widget iframe').getBoundingClientRect())").await;
    for kind in ["mousePressed", "mouseReleased"] {
        let event = json!({"type": kind, "x": at["x"], "y": at["y"], "button": "left", "clickCount": 1});
        page.devtools("Input.dispatchMouseEvent", event).await;
    }
}

fn origin(service: &Turnstile) -> String {
    service.url().trim_end_matches("/v0").to_owned()
}

#[test]
fn a_challenge_that_fails_can_be_repeated() {
    in_browser("a_challenge_that_fails_can_be_repeated", async {
        let service = Turnstile::start();
        let world = turnstile_world("page-turnstile-down", &service).await;
        create(&world, "page-down", -60).await;
        service.fail(Some(support::turnstile::Fault::Closed));
        let page = visit(&world, "page-down", "").await;
        page.until(&format!("{PASS}.startsWith('This page could not get a pass. It tries again in ')"), true)
            .await;
        page.check_layout("12-failed").await;
        page.press("#claim").await;
        assert_message(&page, "no_pass", "You have no pass yet", "尚未获得通行证").await;
        service.fail(None);
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        assert_only_claim(&world, &page, "page-down").await;
        page.close_after_visit_to(&origin(&service)).await;
    });
}

#[test]
fn only_turnstile_extends_the_pages_policy() {
    in_browser("only_turnstile_extends_the_pages_policy", async {
        let service = Turnstile::start();
        let with = turnstile_world("page-policy", &service).await;
        let without = altcha_world("page-policy-altcha", "1").await;
        let policy = async |world: &World, path: &str| {
            let reply = world.send(world.request("GET", path)).await.expect(200);
            reply.header("content-security-policy").to_owned()
        };
        let (strict, extended) =
            (policy(&without, "/?campaign=a").await, policy(&with, "/?campaign=a").await);
        assert!(strict.contains("script-src 'self';") && !strict.contains("frame-src"), "{strict}");
        let origin = origin(&service);
        let expected =
            strict.replace("script-src 'self';", &format!("script-src 'self' {origin}; frame-src {origin};"));
        assert_eq!(extended, expected);
        assert_eq!(policy(&with, "/page.js").await, strict, "other files");
    });
}

#[test]
fn the_altcha_copy_matches_the_npm_package() {
    for (ours, theirs) in [("altcha-pbkdf2.js", "dist/workers/pbkdf2.js"), ("altcha.LICENSE", "LICENSE.txt")]
    {
        let same = fs::read(root().join("edge/assets/pass").join(ours)).unwrap()
            == fs::read(root().join("node_modules/altcha").join(theirs)).unwrap();
        assert!(same, "the copy differs: cp node_modules/altcha/{theirs} edge/assets/pass/{ours}");
    }
}
