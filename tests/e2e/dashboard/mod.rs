//! The dashboard: its event stream, and its page in a real browser with a real core.

mod archived;
mod claims;
mod codes;
mod day;
mod files;
mod form;
mod history;
mod layout;
mod live;
pub mod page;
mod report;
mod trends;

use std::future::Future;
use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::Value;
use support::browser;
use support::edge::EXECUTOR;
use support::{Core, CoreOptions, SOON};
use tokio::time::timeout;

pub const VIEWER: &str = "the-watching-viewers-token-for-the-tests";
pub const OPERATOR: &str = "the-watching-operators-token-for-the-tests";

/// Script that records the texts on each canvas, because the texts are not in any element.
pub const RECORD_CANVAS_TEXTS: &str = "const context = CanvasRenderingContext2D.prototype;
    const { fillText, clearRect } = context;
    context.fillText = function (text, ...place) {
        (this.canvas.texts ??= []).push(text);
        return fillText.call(this, text, ...place);
    };
    context.clearRect = function (...box) {
        this.canvas.texts = [];
        return clearRect.apply(this, box);
    };";

/// Expression for the axis labels that a chart shows more than once.
pub const REPEATED_LABELS: &str = "[...document.querySelectorAll('canvas')].flatMap(({ texts = [] }) =>
    texts.filter((text, at) => texts.indexOf(text) !== at))";

/// Returns options of a core with a viewer and an operator besides its admin.
pub fn with_roles() -> CoreOptions {
    let tokens = format!("vera:viewer:{VIEWER},olga:operator:{OPERATOR}");
    CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", tokens)
}

/// Runs `test` if a browser is installed, concurrently with other tests.
pub fn in_browser(name: &str, test: impl Future<Output = ()>) {
    if browser::is_installed(name) {
        EXECUTOR.block_on(test);
    }
}

/// The event stream of one watcher.
pub struct LiveStream {
    response: Response,
    unread: String,
}

impl LiveStream {
    /// Opens the stream of `core` with `token`.
    pub async fn open(core: &Core, token: &str) -> Self {
        let response = Self::request(core, token).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, unread: String::new() }
    }

    /// Returns the response with its body unread.
    pub async fn request(core: &Core, token: &str) -> Response {
        // The response never ends, so the client's usual timeout must not apply.
        let request = core.client().request(Method::GET, &core.admin_url("/admin/v1/live"));
        request.bearer_auth(token).timeout(Duration::from_secs(3600)).send().await.unwrap()
    }

    /// Returns the next event's name and data, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let field = |name| event.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
                let read = (field("event:").to_owned(), serde_json::from_str(field("data:")).unwrap());
                self.unread = String::from(rest);
                return Some(read);
            }
            let chunk = timeout(SOON, self.response.chunk()).await.expect("further events");
            self.unread.push_str(std::str::from_utf8(&chunk.ok()??).unwrap());
        }
    }

    /// Returns the first snapshot for which `wanted` holds.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = timeout(SOON, async {
            loop {
                let (name, data) = self.next().await.expect("the stream has not ended");
                if name == "snapshot" && wanted(&data) {
                    return data;
                }
                last = data;
            }
        });
        let found = found.await;
        found.unwrap_or_else(|_| panic!("never {what}: {last:#}"))
    }
}

/// Returns the entry of one campaign in a snapshot.
pub fn campaign<'a>(snapshot: &'a Value, id: &str) -> &'a Value {
    let listed = snapshot["campaigns"]["listed"].as_array().unwrap();
    listed.iter().find(|campaign| campaign["id"] == id).unwrap_or(&Value::Null)
}

/// Returns how often claims were denied with `code`.
pub fn denials(snapshot: &Value, code: &str) -> u64 {
    let reasons = snapshot["refusals"]["by_reason"].as_array().unwrap();
    reasons.iter().find(|reason| reason["code"] == code).map_or(0, |reason| reason["count"].as_u64().unwrap())
}
