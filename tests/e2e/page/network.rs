//! The files that the page loads, and its calls without a network, on a slow network, and after
//! `Retry-After`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::browser::{Browser, INSECURE_HOST, PHONE};
use support::edge::root;
use support::process::own_loopback;

use super::{
    BUTTON, CODE, FAKE_ANSWERS, PHASE, assert_only_claim, in_browser, limits, page_world, stored_key, text,
    visit,
};

#[test]
fn the_page_is_below_30_kb_and_loads_from_one_origin() {
    in_browser("the_page_is_below_30_kb_and_loads_from_one_origin", async {
        let world = page_world().await;
        world.core.create("page-small", limits()).await;
        let page = visit(&world, "page-small", "").await;
        page.until(BUTTON, false).await;
        let loaded = page
            .eval(
                "performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname.slice(1))",
            )
            .await;
        let loaded: BTreeSet<String> = serde_json::from_value(loaded).unwrap();
        let names = fs::read_dir(root().join("edge/assets")).unwrap();
        let mut files: BTreeSet<_> =
            names.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert!(files.remove("_headers"), "it configures the server");
        // Loaded only by a visitor who signs in, for a campaign that requires passes, and by the list.
        for directory in ["sign-in", "pass", "campaigns"] {
            let begin = format!("{directory}/");
            assert!(
                files.remove(directory) && !loaded.iter().any(|file| file.starts_with(&begin)),
                "{loaded:?}"
            );
        }
        // The page loads the client, but not the button, which is for other sites.
        assert!(files.remove("client") && !loaded.contains("client/button.js"), "{loaded:?}");
        files.insert("client/claimgate.js".to_owned());
        let sizes: Vec<_> = files.iter().map(|file| (file, zipped_size(file))).collect();
        assert_eq!(files.difference(&loaded).collect::<Vec<_>>(), ["index.html"]);
        let total: usize = sizes.iter().map(|(_, size)| size).sum();
        assert!((10_000..30_000).contains(&total), "{sizes:?}");
        page.close().await;
    });
}

/// Returns the size of one of the page's files, in bytes, as a web server compresses it.
fn zipped_size(file: &str) -> usize {
    let path = root().join("edge/assets").join(file);
    let zipped = Command::new("gzip").arg("-9c").arg(path).output().unwrap();
    assert!(zipped.status.success());
    zipped.stdout.len()
}

#[test]
fn the_page_recovers_from_a_lost_network() {
    in_browser("the_page_recovers_from_a_lost_network", async {
        let world = page_world().await;
        world.core.create("page-offline", limits()).await;
        let page = visit(&world, "page-offline", "").await;
        page.until(BUTTON, false).await;
        world.proxy.delay_answers(Duration::from_secs(2));
        page.press("#claim").await;
        let _ = world.core.sql().until("page-offline", 1).await;
        page.network(true, 0).await;
        world.proxy.delay_answers(Duration::ZERO);
        page.until(PHASE, "retrying").await;
        assert_eq!(text(&page, "message").await, "Not confirmed yet, checking again");
        let turning = "document.getAnimations().length";
        assert_eq!(page.eval(turning).await, 1);
        page.emulate_media("prefers-reduced-motion", "reduce").await;
        assert_eq!(page.eval(turning).await, 0);
        let key = stored_key(&page, "page-offline").await;
        page.until("document.getElementById('note').textContent", "Connection lost").await;
        // The page gives up and shows what to do.
        page.until(PHASE, "error").await;
        assert_eq!(page.eval(CODE).await, "network");
        assert_eq!(page.eval("document.getElementById('again').disabled").await, false);
        page.check_layout("9-offline").await;
        assert_eq!(stored_key(&page, "page-offline").await, key);
        // The page retries without a click.
        page.network(false, 0).await;
        page.until(CODE, "replayed").await;
        assert!(!world.proxy.requests_with(&key).is_empty());
        assert_only_claim(&world, &page, "page-offline").await;
        page.close().await;
    });
}

#[test]
fn an_offline_reload_resends_the_same_claim() {
    in_browser("an_offline_reload_resends_the_same_claim", async {
        let world = page_world().await;
        world.core.create("page-gone", limits()).await;
        let page = visit(&world, "page-gone", "").await;
        page.until(BUTTON, false).await;
        let key = "JSON.parse(Object.entries(localStorage).find(([name]) => /page-gone/.test(name))[1]).key";
        // While a page unloads, the browser now and then sends a request although it is offline: it gets no response.
        world.proxy.lose_all_answers(true);
        page.network(true, 0).await;
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        let before = page.eval(key).await;
        let before = before.as_str().unwrap();
        page.devtools("Page.reload", json!({})).await;
        page.until("document.getElementById('claim') === null", true).await; // the browser's error page
        let sent = world.proxy.requests_with(before).len();
        page.network(false, 0).await;
        world.proxy.lose_all_answers(false);
        page.goto(&world.edge.url("/?campaign=page-gone")).await;
        page.until(PHASE, "won").await;
        assert!(world.proxy.requests_with(before).len() > sent, "the new page sends the same claim");
        assert_only_claim(&world, &page, "page-gone").await;
        page.close().await;
    });
}

#[test]
fn the_number_can_be_copied_over_plain_http() {
    in_browser("the_number_can_be_copied_over_plain_http", async {
        let world = page_world().await;
        world.core.create("page-http", limits()).await;
        let page = Browser::open("page-http", PHONE).await;
        let address = world.edge.url("/?campaign=page-http");
        page.goto(&address.replacen(&own_loopback().to_string(), INSECURE_HOST, 1)).await;
        page.until(BUTTON, false).await;
        assert_eq!(page.eval("isSecureContext").await, false);
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        page.press("#copy").await;
        page.until("document.getElementById('copy').textContent", "Copied").await;
        // Not closed: that checks the console, and over plain HTTP the browser reports a header that it ignores.
    });
}

#[test]
fn the_sign_in_page_says_that_it_needs_https() {
    in_browser("the_sign_in_page_says_that_it_needs_https", async {
        let world = page_world().await;
        let page = Browser::open("page-http-sign-in", PHONE).await;
        let address = world.edge.url("/sign-in/?return_to=/");
        page.goto(&address.replacen(&own_loopback().to_string(), INSECURE_HOST, 1)).await;
        page.until("document.title", "This page needs HTTPS").await;
    });
}

#[test]
fn a_slow_network_does_not_cause_a_second_request() {
    in_browser("a_slow_network_does_not_cause_a_second_request", async {
        let world = page_world().await;
        world.core.create("page-slow", limits()).await;
        let page = Browser::open("page-slow", PHONE).await;
        page.network(false, 2000).await;
        page.goto(&world.edge.url("/?campaign=page-slow")).await;
        page.until(BUTTON, false).await;
        // One script, so that no response arrives between the click and the read.
        let phase = page.eval(&format!("(document.getElementById('claim').click(), {PHASE})")).await;
        assert_eq!(phase, "sending");
        page.check_layout("9-sending").await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(CODE).await, "granted");
        assert_only_claim(&world, &page, "page-slow").await;
        page.close().await;
    });
}

#[test]
fn the_page_waits_for_retry_after() {
    in_browser("the_page_waits_for_retry_after", async {
        let world = page_world().await;
        let page = Browser::open("page-busy", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": FAKE_ANSWERS})).await;
        page.goto(&world.edge.url("/?campaign=page-busy&busy=5")).await;
        page.until("asked.length", 2).await;
        let waited = page.eval("asked[1] - asked[0]").await.as_f64().unwrap();
        assert!(waited > 5000.0, "{waited} ms");
        page.close().await;
    });
}
