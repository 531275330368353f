//! Held claims on the page: the countdown, the link to the seller's checkout, and the end of the hold.

use serde_json::{Value, json};
use support::browser::{Browser, PHONE};
use support::edge::{Edge, World};
use support::stand_in::{Canned, StandIn};
use support::times::from_now;

use super::brand::{assert_readable, branded_page, edge_with_page};
use super::{
    AGAIN_HIDDEN, BUTTON, CODE, DEAF, RECORD_ANNOUNCEMENTS, SHIFTED_CLOCK, in_browser, page_world,
    return_claim, text, visit,
};

/// Returns the seconds left of the hold according to the page; null without a countdown.
const LEFT: &str = r"((found) => found && 3600 * (found[1] ?? 0) + 60 * (found[2] ?? 0) + +(found[3] ?? 0))(
    /Held until .*, (?:(\d+) h ?)?(?:(\d+) min ?)?(?:(\d+) s)? left\. /
        .exec(document.getElementById('detail').textContent))";

/// Returns the text and the address of the link to the checkout; null without a link.
const CHECKOUT: &str = "(({ hidden, textContent, href }) => hidden ? null : [textContent, href])(
    document.getElementById('checkout'))";

const MESSAGE: &str = "document.getElementById('message').textContent";

/// Script that records the page's messages in `messages`.
const RECORD_MESSAGES: &str = "window.messages = [];
    new MutationObserver(() => messages.push(document.getElementById('message')?.textContent))
        .observe(document, { childList: true, subtree: true });";

/// Returns an expression that is true while the page counts down and fewer than `seconds` are left.
fn counts_below(seconds: i64) -> String {
    format!("{LEFT} > 0 && {LEFT} < {seconds}")
}

/// Creates an open campaign whose claims are held for `seconds`.
pub async fn create_with_hold(world: &World, id: &str, seconds: u32) {
    let rules = json!({"id": id, "name": "Reserved", "starts_at": from_now(-60), "hold_seconds": seconds,
        "limits": {"total": 100, "per_user": 3}});
    world.core.create_with(rules).await;
}

/// Returns an edge whose brand links to the checkout of a shop.
async fn edge_with_checkout(world: &World, name: &str, shop: &str) -> Edge {
    let checkout =
        json!({"en": format!("{shop}/checkout/{{claim_id}}"), "zh": format!("{shop}/zh?claim={{claim_id}}")});
    let brand = json!({"name": "Shop", "checkout": checkout}).to_string();
    let config = branded_page(name, &[("brand.json", brand.as_bytes())]).await;
    edge_with_page(world, config, name, "local").await
}

/// Claims a unit on the page, and waits until it is held.
pub async fn claim_held(page: &Browser) {
    page.until(BUTTON, false).await;
    page.press("#claim").await;
    page.until(CODE, "held").await;
}

/// Confirms the claim, as a shop does after the payment.
async fn confirm(world: &World, claim_id: &str) {
    world.core.transition(claim_id, "confirm").await.expect(200);
}

#[test]
fn a_held_claim_counts_down_and_says_what_to_do_next() {
    in_browser("a_held_claim_counts_down_and_says_what_to_do_next", async {
        let world = page_world().await;
        create_with_hold(&world, "page-reserved", 600).await;
        let page = visit(&world, "page-reserved", "").await;
        claim_held(&page).await;
        let first = page.eval(LEFT).await.as_i64().expect("the seconds left");
        // The page estimates the server's clock with an error of up to half a round trip.
        assert!((500..=605).contains(&first), "{first} s left");
        page.until(&counts_below(first), true).await;
        let next = "Complete your purchase in the shop that sent you here.";
        assert!(text(&page, "detail").await.contains(next), "{}", text(&page, "detail").await);
        assert_eq!(page.eval(CHECKOUT).await, Value::Null, "no checkout is configured");
        page.until(AGAIN_HIDDEN, false).await;
        let height = page.eval("document.getElementById('again').getBoundingClientRect().height").await;
        assert!(height.as_f64().unwrap() < 50.0, "the button for another claim is too large: {height}");
        page.check_layout("3-reserved").await;
        // A reload finds the same claim and continues the countdown.
        page.reload().await;
        page.until(&counts_below(first), true).await;
        page.press("#lang").await;
        let chinese = r"/保留至.*，还剩 (\d+ 分)? ?(\d+ 秒)?。请返回商店页面完成购买。/
            .test(document.getElementById('detail').textContent)";
        page.until(chinese, true).await;
        page.check_layout("3-reserved-zh").await;
        page.close().await;
    });
}

#[test]
fn a_held_claim_links_to_the_sellers_checkout() {
    in_browser("a_held_claim_links_to_the_sellers_checkout", async {
        let world = page_world().await;
        let shop = StandIn::start();
        shop.answers("GET /", Canned::html("<!doctype html><html lang=en><title>Shop</title>"));
        let origin = format!("http://{}", shop.listen);
        let edge = edge_with_checkout(&world, "page-checkout", &origin).await;
        create_with_hold(&world, "page-checkout", 3600).await;
        let claim_page = edge.url("/?campaign=page-checkout&lang=en");
        let link_of = |id: &str| json!(["Go to checkout", format!("{origin}/checkout/{id}")]);
        let page = Browser::open("page-checkout", PHONE).await;
        page.goto(&claim_page).await;
        assert_eq!(page.eval(CHECKOUT).await, Value::Null, "nothing is held yet");
        claim_held(&page).await;
        let first = text(&page, "claim-id").await;
        assert_eq!(page.eval(CHECKOUT).await, link_of(&first));
        assert!(text(&page, "detail").await.ends_with("left. Complete your purchase before then."));
        assert!(page.accessible_names(&["link"]).await.contains(&"link: Go to checkout".to_owned()));
        page.press("#lang").await;
        assert_eq!(page.eval(CHECKOUT).await, json!(["前往付款", format!("{origin}/zh?claim={first}")]));
        page.press("#lang").await;
        for scheme in ["light", "dark"] {
            page.emulate_media("prefers-color-scheme", scheme).await;
            assert_readable(&page, &format!("checkout-{scheme}")).await;
        }
        page.resize(PHONE).await;

        page.until(AGAIN_HIDDEN, false).await;
        page.press("#again").await;
        page.until("document.getElementById('sequence').textContent", "2").await;
        let second = text(&page, "claim-id").await;
        assert_eq!(page.eval(CHECKOUT).await, link_of(&second));
        page.press("#checkout").await;
        page.until("location.href", format!("{origin}/checkout/{second}")).await;

        // The buyer returns with one claim still to be paid.
        confirm(&world, &second).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": RECORD_MESSAGES})).await;
        page.goto(&claim_page).await;
        page.until(CHECKOUT, link_of(&first)).await;
        assert_eq!(page.eval("messages.includes('It is yours')").await, true, "the payment was not shown");
        assert_eq!(text(&page, "others").await, "Also yours: No. 2");
        confirm(&world, &first).await;
        page.until(CODE, "granted").await;
        assert_eq!(page.eval(CHECKOUT).await, Value::Null);
        page.close_after_visit_to(&origin).await;
    });
}

#[test]
fn the_next_held_claim_follows_a_returned_one() {
    in_browser("the_next_held_claim_follows_a_returned_one", async {
        let world = page_world().await;
        create_with_hold(&world, "page-hold-next", 3600).await;
        let page = visit(&world, "page-hold-next", "").await;
        claim_held(&page).await;
        let first = text(&page, "claim-id").await;
        page.until(AGAIN_HIDDEN, false).await;
        page.press("#again").await;
        page.until("document.getElementById('sequence').textContent", "2").await;
        let second = text(&page, "claim-id").await;
        page.eval(&format!("(() => {{ {RECORD_MESSAGES} }})()")).await;
        // The buyer cancels the second order in the shop, in another tab.
        return_claim(&world, &second).await;
        page.eval("dispatchEvent(new Event('online'))").await;
        page.until("document.getElementById('claim-id').textContent", first.as_str()).await;
        assert_eq!(
            page.eval("messages.includes('This claim was returned')").await,
            true,
            "the return was not shown"
        );
        page.close().await;
    });
}

#[test]
fn the_countdown_of_a_hold_follows_the_servers_clock() {
    in_browser("the_countdown_of_a_hold_follows_the_servers_clock", async {
        let world = page_world().await;
        let edge = edge_with_checkout(&world, "page-hold-clock", "https://shop.example").await;
        create_with_hold(&world, "page-hold-clock", 3600).await;
        let page = Browser::open("page-hold-clock", PHONE).await;
        for script in [SHIFTED_CLOCK, DEAF] {
            page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
        }
        let is_right = counts_below(3606);
        // The browser's clock is ten hours ahead.
        page.goto(&edge.url("/?campaign=page-hold-clock&ahead=36000000")).await;
        claim_held(&page).await;
        assert_eq!(page.eval(&is_right).await, true, "{}", text(&page, "detail").await);
        // A browser's clock steps. A change of the language shows the error before the page can read the
        // server's clock again.
        for (ahead_ms, shows_error) in
            [(72_000_000, format!("{LEFT} === null")), (0, format!("{LEFT} > 3605"))]
        {
            let step = format!(
                "(() => {{ ahead = {ahead_ms}; document.getElementById('lang').click();
                document.getElementById('lang').click(); return {shows_error}; }})()"
            );
            assert_eq!(page.eval(&step).await, true, "{}", text(&page, "detail").await);
            page.until(&is_right, true).await;
        }
        // Without a response of the server, its clock is unknown.
        page.goto(&edge.url("/?campaign=page-hold-clock&ahead=36000000&deaf")).await;
        page.until(CODE, "held").await;
        assert_eq!(text(&page, "message").await, "Checking your reservation", "the hold may be over");
        let detail = text(&page, "detail").await;
        assert!(detail.starts_with("Held until ") && !detail.contains(" left"), "{detail}");
        assert_eq!(page.eval(CHECKOUT).await, Value::Null, "a payment could be too late");
        page.eval("(window.deaf = false)").await;
        page.until(&is_right, true).await;
        assert_ne!(page.eval(CHECKOUT).await, Value::Null);
        page.close().await;
    });
}

#[test]
fn after_a_hold_the_page_shows_what_the_server_says() {
    in_browser("after_a_hold_the_page_shows_what_the_server_says", async {
        let world = page_world().await;
        let edge = edge_with_checkout(&world, "page-hold-over", "https://shop.example").await;
        create_with_hold(&world, "page-hold-over", 3600).await;
        let page = Browser::open("page-hold-over", PHONE).await;
        for script in [SHIFTED_CLOCK, DEAF] {
            page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await;
        }
        page.goto(&edge.url("/?campaign=page-hold-over")).await;
        claim_held(&page).await;
        let claim = text(&page, "claim-id").await;
        assert_ne!(page.eval(CHECKOUT).await, Value::Null);
        page.eval("(window.deaf = true, window.ahead = 36000000)").await;
        page.until(MESSAGE, "Checking your reservation").await;
        assert!(text(&page, "detail").await.starts_with("It was held until "));
        assert_eq!(page.eval(CHECKOUT).await, Value::Null, "a payment could be too late");
        page.check_layout("3-due").await;
        page.press("#lang").await;
        assert_eq!(text(&page, "message").await, "正在确认您的保留");
        page.press("#lang").await;
        // The payment was in time.
        confirm(&world, &claim).await;
        page.eval("(window.deaf = false)").await;
        page.until(CODE, "granted").await;
        assert_eq!(text(&page, "message").await, "It is yours");
        page.close().await;
    });
}

/// Script that moves the server's time in each view ahead by ten hours, and records the page's waits for lookups, each
/// of which passes a hundred times as fast.
const LATE_SERVER: &str = "const realFetch = fetch, wait = setTimeout;
    window.longest = 0;
    window.fetch = async (url, options) => {
        const reply = await realFetch(url, options);
        if (!/campaigns.[^/]+$/.test(url) || !reply.ok) return reply;
        const view = await reply.json();
        const server_time = new Date(Date.parse(view.server_time) + 36000000);
        return new Response(JSON.stringify({ ...view, server_time }));
    };
    window.setTimeout = (work, ms) => {
        if (work.name !== 'lookUp') return wait(work, ms);
        longest = Math.max(longest, ms);
        return wait(work, ms / 100);
    };";

#[test]
fn a_hold_that_the_server_does_not_end_is_looked_up_rarely() {
    in_browser("a_hold_that_the_server_does_not_end_is_looked_up_rarely", async {
        let world = page_world().await;
        create_with_hold(&world, "page-hold-late", 3600).await;
        let page = Browser::open("page-hold-late", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": LATE_SERVER})).await;
        page.goto(&world.edge.url("/?campaign=page-hold-late")).await;
        claim_held(&page).await;
        page.until(MESSAGE, "Checking your reservation").await;
        page.eval("(longest = 0)").await;
        // 15 s, less 20 %.
        page.until("longest >= 12000", true).await;
        page.close().await;
    });
}

#[test]
fn a_screen_reader_hears_the_end_of_a_hold_but_not_each_second() {
    in_browser("a_screen_reader_hears_the_end_of_a_hold_but_not_each_second", async {
        let world = page_world().await;
        create_with_hold(&world, "page-hold-heard", 305).await;
        let page = visit(&world, "page-hold-heard", "").await;
        page.until(BUTTON, false).await;
        page.eval(RECORD_ANNOUNCEMENTS).await;
        page.press("#claim").await;
        page.until("heard.at(-1) ?? null", "Less than 5 min left.").await;
        let left = page.eval(LEFT).await.as_i64().expect("the seconds left");
        page.until(&counts_below(left), true).await;
        assert_eq!(
            page.eval("heard").await,
            json!(["Sending…", "Reserved for you", "Less than 5 min left."])
        );
        let announced = "document.getElementById('detail').closest('[aria-live], [role]')";
        assert_eq!(page.eval(announced).await, Value::Null, "each second would be announced");
        page.close().await;
    });
}
