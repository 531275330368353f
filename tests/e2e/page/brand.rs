//! The page with an operator's brands: a general one, the example of docs/own-page.md, and one of a campaign.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use support::binary;
use support::browser::{Browser, PHONE, TOO_FAINT};
use support::client::client;
use support::edge::{Edge, Runtime, World, built, emptied, root, tool};
use support::examples::example;
use tokio::sync::OnceCell;

use super::held::{claim_held, create_with_hold};
use super::states::CUT;
use super::{BUTTON, CODE, PHASE, in_browser, limits, page_world, text};

const LOGO: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 24"><path fill="#4f7df3" d="M2 14h28l-5 9H7zM15 1h2v12h-2zM18 2l9 9h-9z"/></svg>"##;
/// A PNG of 24 by 24 pixels, as base64.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAABgAAAAYCAYAAADgdz34AAAAZ0lEQVR42mNgIALckE74jw0zUAJwGUoVy0g1nCRLyDWcKEso\
    NRyvJdQyHKsl1DYcw5JBYcH/Q7YomGgLyDGcJEvINZxYS0YtoNwCiiOZ5sl0eORkmhd2dCmu6VLh0KXKpEulT81mCwANyTJ5\
    XnP7HQAAAABJRU5ErkJggg==";
/// A name just under the 60-character maximum.
const BLOSSOM: &str = "Blossom & Friends of the Old Harbour Gardens, Est. 1897";
const SPRING: &str = "page-brand-spring";
const OTHER: &str = "page-brand-other";

fn spring_brand() -> Value {
    json!({
        "name": BLOSSOM,
        "logo": "blossom.png",
        "colours": {
            "light": {"background": "#fbe9ee", "card": "#fffafb", "paper": "#fdf1f4", "text": "#2a0f18",
                "muted": "#70434f", "line": "#e6c3cd", "accent": "#a3123f", "on_accent": "#fff"},
            "dark": {"background": "#1a0a10", "card": "#2a131b", "paper": "#321822", "text": "#fff0f4",
                "muted": "#d8aab8", "line": "#5c3542", "accent": "#ff9db8", "on_accent": "#3b0416"},
        },
        "terms": "https://blossom.example/terms",
        "texts": {"en": {"button": {"open": "Pick a blossom"}}, "zh": {"idle": "轻点一次即可。"}},
    })
}

/// Builds a copy of the page with brand files, by path in edge/assets. Returns the configuration of workerd.
pub async fn branded_page(name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    built().await;
    let edge = emptied(name).join("edge");
    let copied = Command::new("cp").args(["-rL", "edge"]).arg(&edge).current_dir(root()).output().unwrap();
    assert!(copied.status.success(), "{copied:?}");
    fs::create_dir_all(edge.join("assets/brand")).unwrap();
    for (file, content) in files {
        fs::write(edge.join("assets").join(file), content).unwrap();
    }
    let output = Command::new(tool("node"))
        .arg("scripts/build-brand.mjs")
        .arg(&edge)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    edge.join("workerd.capnp")
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the shared edge with both brands, in front of the core of `world`.
async fn branded_edge(world: &World) -> Edge {
    static CONFIG: OnceCell<PathBuf> = OnceCell::const_new();
    let build = || async {
        let picture = STANDARD.decode(PICTURE).unwrap();
        let general = example("docs/own-page.md", r#"{ "name": "#);
        let spring = spring_brand().to_string();
        let own = format!("brand/{SPRING}.json");
        let files: [(&str, &[u8]); 4] = [
            ("brand.json", general.as_bytes()),
            ("brand/harbour.svg", LOGO.as_bytes()),
            ("brand/blossom.png", &picture),
            (&own, spring.as_bytes()),
        ];
        branded_page("page-brands", &files).await
    };
    edge_with_page(world, CONFIG.get_or_init(build).await.clone(), "page-brand", "local").await
}

/// Starts an edge with the page of `config` in front of the core of `world`, with `environment` of
/// wrangler.toml.
pub async fn edge_with_page(world: &World, config: PathBuf, name: &str, environment: &str) -> Edge {
    let core = format!("http://{}", world.proxy.listen);
    let (edge_key, jwt_key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
    let variables =
        [("CORE_URL", core.as_str()), ("EDGE_KEY", edge_key.as_str()), ("USER_JWT_KEY", jwt_key.as_str())];
    // The brand is in files, which only a copy of workerd's configuration can replace.
    Edge::start_with(config, Runtime::Workerd, name, environment, &variables).await
}

#[test]
fn the_checker_of_brands_passes_its_tests() {
    let tested = Command::new(tool("node"))
        .args(["--test", "edge/brand/check.test.js"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tested.status.success(), "{}", printed(&tested));
}

/// The document shows the line that this brand gets.
#[test]
fn a_wrong_brand_file_stops_the_build_as_documented() {
    let line = example("docs/own-page.md", "edge/assets/brand.json: colours.light.accent: ");
    let directory = emptied("page-brand-wrong");
    let copied = Command::new("cp").args(["-rL", "edge/assets"]).arg(&directory).current_dir(root()).output();
    assert!(copied.unwrap().status.success());
    let accent = json!({"accent": "#ffd700", "on_accent": "#000000"});
    let brand = json!({"name": "Shop", "colours": {"light": accent, "dark": accent}});
    fs::write(directory.join("assets/brand.json"), brand.to_string()).unwrap();
    let before = fs::read(directory.join("assets/brand.js")).ok();
    let built = Command::new(tool("node"))
        .arg("scripts/build-brand.mjs")
        .arg(&directory)
        .current_dir(root())
        .output()
        .unwrap();
    assert_eq!(built.status.code(), Some(1));
    assert!(printed(&built).lines().any(|printed| printed == line.trim()), "{}", printed(&built));
    assert_eq!(fs::read(directory.join("assets/brand.js")).ok(), before, "a wrong brand is built");
}

/// wrangler would print the line and go on running.
#[test]
fn a_wrong_brand_file_ends_the_script_of_make_up() {
    let copy = emptied("page-brand-up");
    let copied = Command::new("cp")
        .args(["-rL", "--parents", "Cargo.toml", "scripts", "edge/assets", "edge/brand"])
        .arg(&copy)
        .current_dir(root())
        .output();
    assert!(copied.unwrap().status.success());
    symlink(root().join("node_modules"), copy.join("node_modules")).unwrap();
    fs::write(copy.join("edge/assets/brand.json"), r#"{"name": 5}"#).unwrap();
    let data = copy.join("data");
    let ended = Command::new(copy.join("scripts/dev.sh"))
        .env("CLAIMGATE_BIN", binary::claimgate())
        .env("CLAIMGATE_DATA_DIR", &data)
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", printed(&ended));
    assert!(printed(&ended).contains("edge/assets/brand.json: name: "), "{}", printed(&ended));
    assert!(!data.exists(), "core was started: {}", printed(&ended));
}

/// The colours of the button and of a granted claim. The page paints another scheme in its next frame.
const COLOUR: &str = "getComputedStyle(document.getElementById('claim')).backgroundColor";
const STUB: &str = "getComputedStyle(document.getElementById('result')).backgroundColor";

/// Returns what the page shows of its brand: name, logo, icon, links, and the button's text and colour.
async fn brand_of(page: &Browser) -> Value {
    page.eval(
        "(() => {
            const $ = (id) => document.getElementById(id);
            const link = ({ hidden, textContent, href }) => hidden ? null : [textContent, href];
            const logo = $('logo');
            return {
                name: $('brand').innerText,
                logo: [new URL(logo.src).pathname, logo.complete && logo.naturalWidth > 0, logo.height],
                icon: document.querySelector('link[rel=icon]').getAttribute('href'),
                links: [$('support'), $('terms')].map(link),
                button: [$('claim').textContent, getComputedStyle($('claim')).backgroundColor],
            };
        })()",
    )
    .await
}

fn brand(name: &str, logo: &str, links: [[&str; 2]; 2], button: [&str; 2]) -> Value {
    json!({"name": name, "logo": [logo, true, 24], "icon": logo, "links": links, "button": button})
}

#[test]
fn each_campaign_has_its_brand_in_each_scheme_and_language() {
    in_browser("each_campaign_has_its_brand_in_each_scheme_and_language", async {
        let world = page_world().await;
        for campaign in [SPRING, OTHER] {
            world.core.create(campaign, limits()).await;
        }
        let edge = branded_edge(&world).await;
        let page = Browser::open("page-brand", PHONE).await;
        let harbour = |name, button, colour, [support, terms]: [[&str; 2]; 2]| {
            brand(name, "/brand/harbour.svg", [support, terms], [button, colour])
        };
        let blossom = |button, colour, links| brand(BLOSSOM, "/brand/blossom.png", links, [button, colour]);
        let help = "https://harbour.example/help";
        let harbour_en = [["Support", help], ["Terms", "https://harbour.example/terms"]];
        let harbour_zh = [["客服", help], ["活动条款", "https://harbour.example/zh/terms"]];
        let blossom_en = [["Support", help], ["Terms", "https://blossom.example/terms"]];
        let blossom_zh = [["客服", help], ["活动条款", "https://blossom.example/terms"]];
        for (campaign, language, light, dark) in [
            (
                OTHER,
                "en",
                harbour("Harbour Tickets", "Get my ticket", "rgb(29, 78, 216)", harbour_en),
                harbour("Harbour Tickets", "Get my ticket", "rgb(147, 180, 255)", harbour_en),
            ),
            (
                OTHER,
                "zh",
                harbour("海港票务", "领取门票", "rgb(29, 78, 216)", harbour_zh),
                harbour("海港票务", "领取门票", "rgb(147, 180, 255)", harbour_zh),
            ),
            (
                SPRING,
                "en",
                blossom("Pick a blossom", "rgb(163, 18, 63)", blossom_en),
                blossom("Pick a blossom", "rgb(255, 157, 184)", blossom_en),
            ),
            (
                SPRING,
                "zh",
                blossom("领取门票", "rgb(163, 18, 63)", blossom_zh),
                blossom("领取门票", "rgb(255, 157, 184)", blossom_zh),
            ),
        ] {
            page.goto(&edge.url(&format!("/?campaign={campaign}&lang={language}"))).await;
            page.until(BUTTON, false).await;
            for (scheme, expected) in [("light", light), ("dark", dark)] {
                page.emulate_media("prefers-color-scheme", scheme).await;
                page.until(COLOUR, expected["button"][1].clone()).await;
                assert_eq!(brand_of(&page).await, expected, "{campaign} {language} {scheme}");
                assert_readable(&page, &format!("{campaign}-{language}-{scheme}")).await;
            }
        }
        page.press("#claim").await;
        page.until(CODE, "granted").await;
        assert_eq!(text(&page, "message").await, "到时见");
        for (scheme, accent) in [("light", "rgb(163, 18, 63)"), ("dark", "rgb(255, 157, 184)")] {
            page.emulate_media("prefers-color-scheme", scheme).await;
            page.until(STUB, accent).await;
            assert_readable(&page, &format!("{SPRING}-won-zh-{scheme}")).await;
        }
        page.close().await;
    });
}

/// Checks contrast, layout and accessibility on a phone and a desktop. With `SCREENSHOTS`, saves pictures.
pub async fn assert_readable(page: &Browser, name: &str) {
    for width in [360, 1440] {
        page.resize((width, 900)).await;
        assert_eq!(page.eval(TOO_FAINT).await, json!([]), "{name} at {width}");
        assert_eq!(page.eval(CUT).await, json!([]), "{name} at {width}");
        page.assert_accessible(name).await;
        if std::env::var_os("SCREENSHOTS").is_some() {
            page.screenshot(&format!("brand/{name}-{width}")).await;
        }
    }
}

/// Script that records what each frame shows: the visible name, and the colour behind the ticket.
const RECORD_FRAMES: &str = "window.frames_shown = new Set();
    (function record() {
        const name = document.getElementById('brand');
        if (document.body && document.styleSheets.length) {
            const shown = name && getComputedStyle(name).visibility === 'visible' ? name.textContent : '';
            frames_shown.add(`${shown} on ${getComputedStyle(document.body).backgroundColor}`);
        }
        requestAnimationFrame(record);
    })();";

#[test]
fn no_frame_of_the_page_shows_another_brand() {
    in_browser("no_frame_of_the_page_shows_another_brand", async {
        let world = page_world().await;
        world.core.create("page-brand-first", limits()).await;
        let edge = branded_edge(&world).await;
        let page = Browser::open("page-brand-first", PHONE).await;
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": RECORD_FRAMES})).await;
        page.emulate_media("prefers-color-scheme", "light").await;
        // Each file takes a while to arrive, so that frames are painted in between.
        page.network(false, 150).await;
        for (campaign, ground) in [("page-brand-first", "rgb(232, 237, 246)"), (SPRING, "rgb(251, 233, 238)")]
        {
            let name = if campaign == SPRING { BLOSSOM } else { "Harbour Tickets" };
            page.goto(&edge.url(&format!("/?campaign={campaign}&lang=en"))).await;
            page.until("document.documentElement.dataset.brand ?? null", Value::Null).await;
            let branded = format!("{name} on {ground}");
            page.until(&format!("frames_shown.has('{branded}')"), true).await;
            let shown = page.eval("[...frames_shown].toSorted()").await;
            assert_eq!(shown, json!([format!(" on {ground}"), branded]));
        }
        page.close().await;
    });
}

#[test]
fn a_failed_sign_in_shows_the_campaigns_brand() {
    in_browser("a_failed_sign_in_shows_the_campaigns_brand", async {
        let world = page_world().await;
        let edge = branded_edge(&world).await;
        let page = Browser::open("page-brand-sign-in", PHONE).await;
        page.goto(&edge.url("/?campaign=page-brand-none&lang=zh")).await;
        page.until(CODE, "campaign_not_found").await;
        for (campaign, name) in [("page-brand-none", "海港票务"), (SPRING, BLOSSOM)] {
            page.goto(&edge.url(&format!("/?campaign={campaign}&lang=zh"))).await;
            page.until("document.getElementById('brand').innerText", name).await;
            page.goto(&edge.url(&format!("/sign-in/?return_to=/?campaign={campaign}%26lang=zh"))).await;
            page.until(PHASE, "error").await;
            assert_eq!(page.eval("document.getElementById('brand').innerText").await, name);
            assert_readable(&page, &format!("{campaign}-sign-in")).await;
        }
        page.close().await;
    });
}

#[test]
fn logos_are_served_like_the_pages_other_files() {
    super::run(async {
        let world = page_world().await;
        let edge = branded_edge(&world).await;
        let http = client();
        let get = |path: &str| http.request(Method::GET, &edge.url(path));
        let picture = STANDARD.decode(PICTURE).unwrap();
        for (path, kind, content) in [
            ("/brand/harbour.svg", "image/svg+xml", LOGO.as_bytes()),
            ("/brand/blossom.png", "image/png", picture.as_slice()),
        ] {
            let reply = http.send(get(path)).await.unwrap().expect(200);
            assert_eq!((reply.header("content-type"), reply.body.as_slice()), (kind, content));
            assert_eq!(reply.header("cache-control"), "public, max-age=0, must-revalidate");
            assert!(reply.header("content-security-policy").starts_with("default-src 'none';"));
            let again = http.send(get(path).header("if-none-match", reply.header("etag"))).await;
            assert_eq!(again.unwrap().status, 304);
        }
        for path in ["/brand/none.svg", "/brand.json", "/generated", "/campaigns/", "/constructor"] {
            let _ = http.send(get(path)).await.unwrap().expect(404);
        }
    });
}

/// Script that records the page's waits for polls, and lets each pass a hundred times as fast.
const SHORTEN_WAITS: &str = "window.polls = window.longest = 0;
    const wait = setTimeout;
    window.setTimeout = (work, ms) => {
        if (work.name !== 'refresh') return wait(work, ms);
        polls++;
        longest = Math.max(longest, ms);
        return wait(work, ms / 100);
    };";

/// Script that stops the page's clock 40.5 s before the campaign opens, however long the polls take, and counts the
/// polls that were answered.
const OPENS_SOON: &str = "const fetchView = fetch, stopped = Date.now();
    Date.now = () => stopped;
    window.answered = 0;
    window.fetch = async (url, options) => {
        const reply = await fetchView(url, options);
        if (!/campaigns.[^/]+$/.test(url)) return reply;
        if (reply.status < 400) answered++;
        if (!reply.ok) return reply;
        const view = await reply.json();
        const starts_at = new Date(Date.parse(view.server_time) + 40500);
        return new Response(JSON.stringify({ ...view, state: 'scheduled', starts_at }));
    };";

/// Opens the campaign's page on an edge whose brand sets 60 s between polls.
async fn page_with_rare_polls(edge: &Edge, campaign: &str, scripts: &[&str]) -> Browser {
    let page = Browser::open(campaign, PHONE).await;
    for source in scripts {
        page.devtools("Page.addScriptToEvaluateOnNewDocument", json!({"source": source})).await;
    }
    page.goto(&edge.url(&format!("/?campaign={campaign}"))).await;
    page
}

async fn assert_longest_wait_below(page: &Browser, most_ms: f64) {
    let longest = page.eval("longest").await.as_f64().unwrap();
    assert!(longest < most_ms, "the page waited for {longest} ms");
}

#[test]
fn the_page_polls_rarely_if_no_claim_is_held() {
    in_browser("the_page_polls_rarely_if_no_claim_is_held", async {
        let world = page_world().await;
        create_with_hold(&world, "page-brand-refresh", 3600).await;
        let edge = branded_edge(&world).await;
        let page = page_with_rare_polls(&edge, "page-brand-refresh", &[SHORTEN_WAITS]).await;
        // 60 s, less 20 %; without a brand, 15 s and 20 %.
        page.until("longest >= 48000", true).await;
        claim_held(&page).await;
        page.eval("polls = longest = 0").await;
        page.until("polls >= 5", true).await;
        assert_longest_wait_below(&page, 48_000.0).await;
        page.close().await;
    });
}

#[test]
fn no_long_wait_for_a_poll_lasts_until_the_opening() {
    in_browser("no_long_wait_for_a_poll_lasts_until_the_opening", async {
        let world = page_world().await;
        world.core.create("page-brand-opening", limits()).await;
        let edge = branded_edge(&world).await;
        let scripts = [SHORTEN_WAITS, OPENS_SOON];
        let page = page_with_rare_polls(&edge, "page-brand-opening", &scripts).await;
        // The waits have grown to 60 s, but end within 15 s after the frequent polls begin, which is in 10 s.
        page.until("answered >= 20", true).await;
        assert_longest_wait_below(&page, 40_000.0).await;
        page.close().await;
    });
}
