//! The examples of docs/embedding.md and docs/own-page.md: a page of another origin made of them.

use serde_json::json;
use support::browser::{Browser, PHONE};
use support::edge::{Runtime, World};
use support::examples::Examples;
use support::stand_in::{Canned, StandIn};

use crate::page::in_browser;

#[test]
fn the_embedding_examples_work_as_a_page() {
    in_browser("the_embedding_examples_work_as_a_page", async {
        let mut document = Examples::of("docs/embedding.md");
        let allowed = document.next("CORS_ORIGINS = ");
        let button = document.next("<script type=\"module\" src=");
        let style = document.next("claimgate-button {");
        document.end();
        let mut document = Examples::of("docs/own-page.md");
        document.run_in(r#"{ "name": "#, "tests/e2e/page/brand.rs");
        document.run_in("edge/assets/brand.json: colours.light.accent: ", "tests/e2e/page/brand.rs");
        let own = document.next("<script type=\"module\">");
        document.end();

        let site = StandIn::start();
        let origin = format!("http://{}", site.listen);
        let allowed = allowed.replace("https://shop.example.com", &origin);
        let (name, value) = allowed.trim().split_once(" = ").unwrap();
        let variables = [(name, value.trim_matches('"'))];
        let world = World::start(Runtime::from_env(), "examples-embedding", "test", &variables).await;
        world.core.create("spring", json!({"total": 7})).await;
        let token = format!(
            "<script>const token = '{}'; function claimgateToken() {{ return token; }}</script>",
            world.token("alice")
        );
        let page =
            format!("<!doctype html><html lang=en><style>{style}</style>{token}{button}<p id=left></p>{own}");
        let page = page.replace("https://claims.example.com", &world.edge.url(""));
        assert!(!page.contains("example.com"), "{page}");
        site.answers("GET / ", Canned::html(&page));

        let page = Browser::open("examples-embedding", PHONE).await;
        page.goto(&format!("{origin}/")).await;
        page.until("document.querySelector('#left').textContent", "7").await;
        let inner = "document.querySelector('claimgate-button').shadowRoot.querySelector('button')";
        page.until(&format!("{inner}.ariaDisabled"), "false").await;
        let look = page.eval(&format!("(({{ backgroundColor, borderRadius }}) => [backgroundColor, borderRadius])(getComputedStyle({inner}))")).await;
        assert_eq!(look, json!(["rgb(122, 31, 43)", "0px"]));
        page.close_after_visit_to(&world.edge.url("")).await;
    });
}
