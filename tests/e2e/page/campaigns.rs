//! The list of the campaigns that the brand files name.

use reqwest::Method;
use serde_json::json;
use support::browser::{Browser, PHONE};
use support::client::client;
use support::edge::{Edge, World};
use support::times::from_now;

use super::brand::{branded_page, edge_with_page};
use super::{DEAF, FAKE_ANSWERS, STATE, in_browser, limits, page_world, run, text};

/// Returns what the list shows of each campaign: the target of its link, name, state and details.
const ROWS: &str = "[...document.querySelectorAll('#campaigns a')].map(
    (link) => [link.getAttribute('href'), ...[...link.children].map(({ textContent }) => textContent)])";

const NOTICE: &str = "document.getElementById('notice').textContent";

/// Starts an edge without a default campaign, whose brand files list these campaigns.
async fn edge_with_list(world: &World, name: &str, listed: &[&str]) -> Edge {
    let brand = json!({"name": "Harbour Tickets"}).to_string();
    let own: Vec<_> = listed.iter().map(|id| format!("brand/{id}.json")).collect();
    let mut files = vec![("brand.json", brand.as_bytes())];
    files.extend(own.iter().map(|file| (file.as_str(), br#"{"listed": true}"#.as_slice())));
    let config = branded_page(name, &files).await;
    edge_with_page(world, config, name, "test").await
}

#[test]
fn listed_campaigns_are_shown_until_they_end() {
    in_browser("listed_campaigns_are_shown_until_they_end", async {
        let world = page_world().await;
        let listed = ["list-soon", "list-open", "list-over", "list-unknown"];
        let edge = edge_with_list(&world, "page-list", &listed).await;
        for (id, name, starts_in_s) in [
            ("list-soon", "Autumn sale", 9000),
            ("list-open", "Summer sale", -60),
            ("list-over", "Spring sale", -60),
        ] {
            let rules =
                json!({"id": id, "name": name, "starts_at": from_now(starts_in_s), "limits": limits()});
            world.core.create_with(rules).await;
        }
        let _ = world.core.set_admin_state("list-over", "end").await.expect(200);
        world.core.create("list-hidden", limits()).await;
        let page = Browser::open("page-list", PHONE).await;
        // A seller's link signs the visitor in.
        let hash = format!("#token={}", world.token("alice"));
        page.goto(&edge.url(&format!("/campaigns/?lang=en{hash}"))).await;
        page.until(&format!("{ROWS}.length"), 2).await;
        let rows = page.eval(ROWS).await;
        let link = format!("/?lang=en&campaign=list-open{hash}");
        assert_eq!(rows[0], json!([link, "Summer sale", "Open now", "100 left"]));
        assert_eq!(page.eval("location.hash").await, "", "the address still contains the token");
        assert_eq!(rows[1][1], "Autumn sale");
        assert!(rows[1][3].as_str().unwrap().starts_with("Opens: "), "{rows}");
        assert_eq!(
            (text(&page, "title").await, text(&page, "brand").await),
            ("Campaigns".to_owned(), "Harbour Tickets".to_owned())
        );
        page.check_layout("12-campaigns").await;
        page.press("#lang").await;
        let link = format!("/?lang=zh&campaign=list-open{hash}");
        let chinese = json!([link, "Summer sale", "进行中", "剩余 100 份"]);
        assert_eq!(page.eval(&format!("{ROWS}[0]")).await, chinese);
        assert_eq!(text(&page, "title").await, "活动列表");
        page.check_layout("12-campaigns-zh").await;
        page.press("#lang").await;

        let _ = world.core.set_admin_state("list-open", "end").await.expect(200);
        page.until(&format!("{ROWS}.length"), 1).await;
        page.press("#campaigns a").await;
        page.until("location.search", "?lang=en&campaign=list-soon").await;
        page.until("document.getElementById('name')?.textContent ?? null", "Autumn sale").await;
        page.until("document.getElementById('user').textContent", "Signed in as alice").await;
        // The campaign's page leads back to the list.
        let _ = world.core.set_admin_state("list-soon", "end").await.expect(200);
        assert_eq!(text(&page, "list").await, "Campaigns");
        page.press("#list").await;
        page.until("location.pathname", "/campaigns/").await;
        page.until(NOTICE, "There is no campaign right now.").await;
        assert_eq!(page.eval(ROWS).await, json!([]));
        page.check_layout("12-no-campaigns").await;
        page.close().await;
    });
}

#[test]
fn a_list_without_a_network_recovers_and_obeys_retry_after() {
    in_browser("a_list_without_a_network_recovers_and_obeys_retry_after", async {
        let world = page_world().await;
        world.core.create("list-offline", limits()).await;
        let edge = edge_with_list(&world, "page-list-offline", &["list-offline"]).await;
        let page = Browser::open("page-list-offline", PHONE).await;
        for script in [DEAF, FAKE_ANSWERS] {
            page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
        }
        page.goto(&edge.url("/campaigns/?lang=en&deaf")).await;
        page.until(NOTICE, "Connection lost. This page will keep trying.").await;
        assert_eq!(page.eval(ROWS).await, json!([]));
        page.eval("(window.deaf = false)").await;
        page.until(&format!("{ROWS}.length"), 1).await;
        assert_eq!(text(&page, "notice").await, "");
        // The network returns before the server wants to be asked again.
        page.goto(&edge.url("/campaigns/?lang=en&busy=5")).await;
        page.until(NOTICE, "Currently unavailable. This page will keep trying.").await;
        page.eval("dispatchEvent(new Event('online'))").await;
        page.until("asked.length", 2).await;
        let waited = page.eval("asked[1] - asked[0]").await.as_f64().unwrap();
        assert!(waited > 4900.0, "{waited} ms"); // timers may be a little early
        page.goto(&edge.url("/?campaign=list-offline")).await;
        page.until(STATE, "open").await;
        page.close().await;
    });
}

#[test]
fn the_root_without_a_campaign_is_the_list() {
    run(async {
        let world = page_world().await;
        let edge = edge_with_list(&world, "page-list-root", &["list-root"]).await;
        let http = client();
        let get = |path: &str| http.request(Method::GET, &edge.url(path));
        let list = http.send(get("/campaigns/")).await.unwrap().expect(200);
        for path in ["/", "/?lang=zh", "/index.html"] {
            let root =
                http.send(get(path).header("if-none-match", list.header("etag"))).await.unwrap().expect(200);
            assert_eq!(root.text(), list.text(), "{path}");
            for name in ["content-type", "content-security-policy", "cache-control"] {
                assert_eq!(root.header(name), list.header(name), "{path}: {name}");
            }
        }
        let claim_page = http.send(get("/?campaign=any")).await.unwrap().expect(200);
        assert!(claim_page.text().contains("page.js"), "{}", claim_page.text());
        let _ = http.send(http.request(Method::POST, &edge.url("/"))).await.unwrap().expect(404);
    });
}
