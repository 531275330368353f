//! What the page loads, and how it asks: without a network, on a slow one, and no sooner than it is told.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::json;
use support::browser::{Browser, PHONE};
use support::edge::root;

use super::{
    BUTTON, CODE, PHASE, SAYS, in_browser, is_the_one_claim, kept_key, limits, page_world, text, visit,
};

#[test]
fn all_of_it_is_under_44_kb_and_from_one_origin() {
    in_browser("all_of_it_is_under_44_kb_and_from_one_origin", async {
        let world = page_world().await;
        world.core.create("page-small", limits()).await;
        let files = fs::read_dir(root().join("edge/assets")).unwrap().map(Result::unwrap);
        // What the server is told is not sent.
        let sent = files.filter(|file| file.file_name() != "_headers");
        let on_disk: u64 = sent.map(|file| fs::metadata(file.path()).unwrap().len()).sum();
        let page = visit(&world, "page-small", "").await;
        page.until(BUTTON, false).await;
        let entries = page
            .eval(
                "performance.getEntries().filter(entry => entry.decodedBodySize >= 0)\
            .map(entry => [new URL(entry.name).pathname, entry.decodedBodySize])",
            )
            .await;
        let entries: BTreeMap<String, u64> =
            serde_json::from_value::<Vec<_>>(entries).unwrap().into_iter().collect();
        let files = ["/", "/page.css", "/page.js", "/messages.js", "/claimgate.js", "/favicon.svg"];
        let files = files.map(|file| entries[file]);
        let loaded: u64 = files.iter().sum();
        assert!(
            loaded > 20_000 && loaded < 44 << 10 && on_disk < 44 << 10,
            "{loaded} of {entries:?}, {on_disk} on disk"
        );
        page.close().await;
    });
}

#[test]
fn a_network_lost_in_the_middle_is_waited_for() {
    in_browser("a_network_lost_in_the_middle_is_waited_for", async {
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
        assert_eq!(text(&page, "message").await, "Not sure yet, asking again");
        let turning = "document.getAnimations().length";
        assert_eq!(page.eval(turning).await, 1);
        page.prefers("prefers-reduced-motion", "reduce").await;
        assert_eq!(page.eval(turning).await, 0);
        let key = kept_key(&page, "page-offline").await;
        page.until("document.getElementById('note').textContent", "Connection lost").await;
        // It stops asking, and says what to do.
        page.until(PHASE, "error").await;
        assert_eq!(page.eval(CODE).await, "network");
        assert_eq!(page.eval("document.getElementById('again').disabled").await, false);
        page.picture("9-offline").await;
        assert_eq!(kept_key(&page, "page-offline").await, key);
        // Nothing is pressed.
        page.network(false, 0).await;
        page.until(CODE, "replayed").await;
        assert!(!world.proxy.said(&key).is_empty());
        is_the_one_claim(&world, &page, "page-offline").await;
        page.close().await;
    });
}

#[test]
fn a_reload_without_a_network_is_the_same_claim_too() {
    in_browser("a_reload_without_a_network_is_the_same_claim_too", async {
        let world = page_world().await;
        world.core.create("page-gone", limits()).await;
        let page = visit(&world, "page-gone", "").await;
        page.until(BUTTON, false).await;
        let key = "JSON.parse(Object.entries(localStorage).find(([name]) => /page-gone/.test(name))[1]).key";
        page.network(true, 0).await;
        page.press("#claim").await;
        page.until(PHASE, "retrying").await;
        let before = page.eval(key).await;
        page.devtools("Page.reload", json!({})).await;
        page.until("document.getElementById('claim') === null", true).await; // the browser's own page of errors
        assert_eq!(world.core.sql().claims("page-gone").await.len(), 0);
        page.network(false, 0).await;
        page.goto(&world.edge.url("/?campaign=page-gone")).await;
        page.until(PHASE, "won").await;
        assert!(!world.proxy.said(before.as_str().unwrap()).is_empty());
        is_the_one_claim(&world, &page, "page-gone").await;
        page.close().await;
    });
}

#[test]
fn a_slow_network_is_one_request_and_no_doubt() {
    in_browser("a_slow_network_is_one_request_and_no_doubt", async {
        let world = page_world().await;
        world.core.create("page-slow", limits()).await;
        let page = Browser::open("page-slow", PHONE).await;
        page.network(false, 2000).await;
        page.goto(&world.edge.url("/?campaign=page-slow")).await;
        page.until(BUTTON, false).await;
        page.press("#claim").await;
        assert_eq!(page.eval(PHASE).await, "sending");
        page.picture("9-sending").await;
        page.until(PHASE, "won").await;
        assert_eq!(page.eval(CODE).await, "granted");
        is_the_one_claim(&world, &page, "page-slow").await;
        page.close().await;
    });
}

#[test]
fn it_asks_no_sooner_than_it_is_told() {
    in_browser("it_asks_no_sooner_than_it_is_told", async {
        let world = page_world().await;
        let page = Browser::open("page-busy", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": SAYS})).await;
        page.goto(&world.edge.url("/?campaign=page-busy&busy=5")).await;
        page.until("asked.length", 2).await;
        let waited = page.eval("asked[1] - asked[0]").await.as_f64().unwrap();
        assert!(waited > 5000.0, "{waited} ms");
        page.close().await;
    });
}
