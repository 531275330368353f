//! `<claimgate-button>` on a page of another origin: the page of `examples/embed`.

use serde_json::json;
use support::browser::{Browser, PHONE};
use support::edge::{Runtime, World};
use support::stand_in::{Canned, StandIn};
use support::times::from_now;
use support::wait::holds;
use support::{SOON, eventually};

use super::in_browser;

const PAGE: &str = include_str!("../../../examples/embed/index.html");
const DISABLED: &str =
    "document.querySelector('claimgate-button').shadowRoot.querySelector('button').ariaDisabled";
const LABEL: &str =
    "document.querySelector('claimgate-button').shadowRoot.querySelector('button').textContent";
const STATUS: &str = "document.querySelector('claimgate-button').shadowRoot.querySelector('p').textContent";
const UNKNOWN: &str = "Not confirmed yet. You can try again safely: you will not be counted twice.";
/// Clicks the button. A shadow tree has no element that WebDriver could find by a selector.
const PRESS: &str = "document.querySelector('claimgate-button').shadowRoot.querySelector('button').click()";

/// A website of another origin, with the example's page for the campaign.
struct Site {
    server: StandIn,
}

impl Site {
    fn start() -> Self {
        Self { server: StandIn::start() }
    }

    fn origin(&self) -> String {
        format!("http://{}", self.server.listen)
    }

    /// Serves the page with a button for `campaign` of the edge.
    fn shows(&self, world: &World, campaign: &str) {
        let named = PAGE.replace("https://claims.example.com", &world.edge.url(""));
        let page = named.replace("campaign=\"spring\"", &format!("campaign=\"{campaign}\""));
        assert!(page.contains(campaign) && !page.contains("example.com"), "{page}");
        self.server.answers(&format!("GET /{campaign} "), Canned::html(&page));
    }

    /// Signs `user` in, or out.
    fn signs_in(&self, world: &World, user: Option<&str>) {
        let token = json!({"token": user.map(|user| world.token(user))});
        self.server.answers("GET /claimgate-token ", Canned::json(200, &token));
    }

    async fn visit(&self, campaign: &str) -> Browser {
        let page = Browser::open(campaign, PHONE).await;
        page.goto(&format!("{}/{campaign}", self.origin())).await;
        page
    }
}

/// Presses the button, and again while the outcome is unknown, as on a slow machine, until it says `wanted`.
async fn press_until(page: &Browser, wanted: &str) {
    page.eval(PRESS).await;
    eventually(SOON, || async {
        let said = page.eval(STATUS).await;
        if said == UNKNOWN {
            page.eval(PRESS).await;
        }
        holds(said == wanted, || said.to_string())
    })
    .await;
}

async fn world(name: &str, cors_origins: &str) -> World {
    World::start(Runtime::from_env(), name, "test", &[("CORS_ORIGINS", cors_origins)]).await
}

#[test]
fn a_page_of_another_origin_has_a_working_button() {
    in_browser("a_page_of_another_origin_has_a_working_button", async {
        let site = Site::start();
        let world = world("button", &site.origin()).await;
        let rules = json!({"id": "coupons", "name": "Coupons", "starts_at": from_now(-60),
            "limits": {"total": 0, "per_user": 1}, "codes": true});
        world.core.create_with(rules).await;
        world.core.add_codes("coupons", "SAVE-7F3A\n").await.expect(200);
        world.core.patch("coupons", json!({"limits": {"total": 1}})).await.expect(200);
        site.shows(&world, "coupons");

        site.signs_in(&world, None);
        let page = site.visit("coupons").await;
        page.until(DISABLED, "false").await;
        page.check_layout("20-button").await;
        assert_eq!(page.accessible_names(&["button"]).await, ["button: Get your coupon"]);
        press_until(&page, "Please sign in first.").await;

        site.signs_in(&world, Some("alice"));
        let heard = "window.heard = []; addEventListener('claimgate-claim', ({ detail }) => heard.push(detail.claim.id))";
        page.eval(&format!("(() => {{ {heard} }})()")).await;
        press_until(&page, "It is yours: number 1.SAVE-7F3A").await;
        let rows = world.core.sql().until("coupons", 1).await;
        assert_eq!((rows[0].user_id.as_str(), page.eval("heard").await), ("alice", json!([rows[0].id])));
        page.until(LABEL, "Claimed").await;
        page.check_layout("21-button-claimed").await;
        page.reload().await;
        page.until(STATUS, "It is yours: number 1.SAVE-7F3A").await;

        site.signs_in(&world, Some("bob"));
        page.reload().await;
        page.until(LABEL, "All taken").await;
        assert_eq!(page.eval(DISABLED).await, "true");
        page.eval("(() => { document.querySelector('claimgate-button').lang = 'zh'; })()").await;
        page.until(LABEL, "已领完").await;
        page.check_layout("22-button-sold-out").await;
        page.close_after_visit_to(&world.edge.url("")).await;
    });
}

#[test]
fn a_double_click_on_the_button_claims_once() {
    in_browser("a_double_click_on_the_button_claims_once", async {
        let site = Site::start();
        let world = world("button-twice", &site.origin()).await;
        world.core.create("coupons", json!({"total": 5, "per_user": 2})).await;
        site.shows(&world, "coupons");
        site.signs_in(&world, Some("alice"));
        let page = site.visit("coupons").await;
        page.until(DISABLED, "false").await;
        let again = format!("addEventListener('claimgate-claim', () => {PRESS})");
        page.eval(&format!("(() => {{ {again} }})()")).await;
        page.eval(PRESS).await;
        page.until(LABEL, "Claim another").await;
        assert_eq!(world.core.campaign("coupons").await["remaining"], 4);
        press_until(&page, "It is yours: number 2. Also yours: 1.").await;

        site.signs_in(&world, Some("bob"));
        let script = "(() => { const button = document.createElement('claimgate-button');
            button.campaign = 'coupons';
            button.token = claimgateToken;
            document.querySelector('claimgate-button').replaceWith(button); })()";
        page.eval(script).await;
        page.until(LABEL, "Claim").await;
        page.until(DISABLED, "false").await;
        assert_eq!(page.eval(STATUS).await, "", "bob has claimed nothing");
        page.close_after_visit_to(&world.edge.url("")).await;
    });
}

#[test]
fn a_page_whose_origin_is_not_listed_cannot_claim() {
    in_browser("a_page_whose_origin_is_not_listed_cannot_claim", async {
        let (site, listed) = (Site::start(), Site::start());
        let world = world("button-refused", &listed.origin()).await;
        world.core.create("coupons", json!({"total": 1})).await;
        site.shows(&world, "coupons");
        site.signs_in(&world, Some("alice"));
        let page = site.visit("coupons").await;
        page.until(STATUS, "The server cannot be reached. Trying again.").await;
        assert_eq!(page.eval(DISABLED).await, "true");
        page.eval("document.querySelector('claimgate-button').claim()").await;
        page.until(STATUS, UNKNOWN).await;
        assert_eq!(world.core.campaign("coupons").await["remaining"], 1);
    });
}
