//! Takes the pictures of the documents from a real core, edge and browser. `make screenshots` copies them to
//! `docs/pictures`.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use support::Core;
use support::browser::Browser;
use support::core_client::campaign;
use support::edge::{Runtime, World};
use tokio::time::interval;

use crate::dashboard::page::{sign_in, visit};
use crate::page::{self, PHASE, in_browser};

const WINDOW: (u32, u32) = (1280, 900);
const SMALL_WINDOW: (u32, u32) = (760, 640);
/// For how long the dashboard's charts show claims.
const SECONDS: u32 = 90;
const STATE: &str = "document.querySelector('[data-id=concert] .state')?.textContent";

/// Creates the campaign `concert` with `total` tickets.
async fn open_sale(core: &Core, total: u32) {
    let mut sale = campaign("concert", json!({"total": total, "per_user": 2}));
    sale["name"] = json!("Spring concert");
    core.create_with(sale).await;
}

/// Sends claims of new users: many at the opening, then fewer.
async fn send_claims(core: &Core) {
    let mut each_second = interval(Duration::from_secs(1));
    for second in 0..SECONDS {
        each_second.tick().await;
        let users = 20 + 400 / (1 + second / 6);
        join_all((0..users).map(async |user| {
            let reply = core.claim("concert", &format!("user-{second}-{user}"), "k").await;
            assert!([201, 409].contains(&reply.status), "{}", reply.text());
        }))
        .await;
    }
}

/// Saves the page as the user sees it with a light or dark theme.
async fn save(page: &Browser, name: &str, scheme: &str) {
    page.emulate_media("prefers-color-scheme", scheme).await;
    page.screenshot(&format!("documents/{name}-{scheme}")).await;
}

#[test]
fn the_documents_show_the_page_and_the_dashboard() {
    in_browser("the_documents_show_the_page_and_the_dashboard", async {
        let world = World::start(Runtime::from_env(), "pictures", "local", &[]).await;
        open_sale(&world.core, 12_000).await;
        let dashboard = visit(&world.core, "pictures-dashboard").await;
        dashboard.resize(WINDOW).await;
        sign_in(&dashboard, &world.core.admin_token()).await;
        send_claims(&world.core).await;
        dashboard.until(STATE, "Open").await;
        save(&dashboard, "dashboard", "light").await;
        save(&dashboard, "dashboard", "dark").await;
        dashboard.close().await;

        let page = page::visit(&world, "concert", "&lang=en").await;
        page.resize(SMALL_WINDOW).await;
        page.until(PHASE, "open").await;
        save(&page, "page-open", "light").await;
        page.press("#claim").await;
        page.until(PHASE, "won").await;
        save(&page, "page-granted", "dark").await;
        page.close().await;
    });
}
