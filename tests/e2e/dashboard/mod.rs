//! The dashboard: the events that it reads, and its page in a real browser before a real core.

mod files;
mod layout;
mod live;
mod page;

use std::future::Future;

use reqwest::{Method, Response};
use serde_json::Value;
use support::browser;
use support::edge::EXECUTOR;
use support::{Core, CoreOptions, SOON};
use tokio::time::timeout;

pub const VIEWER: &str = "the-watching-viewers-token-for-the-tests";
pub const OPERATOR: &str = "the-watching-operators-token-for-the-tests";

/// A core that knows a viewer and an operator beside its own admin.
pub fn with_roles() -> CoreOptions {
    let tokens = format!("vera:viewer:{VIEWER},olga:operator:{OPERATOR}");
    CoreOptions::default().with("CLAIMGATE_ADMIN_TOKENS", tokens)
}

/// Runs `test` where there is a browser; beside others.
pub fn in_browser(name: &str, test: impl Future<Output = ()>) {
    if browser::is_here() {
        EXECUTOR.block_on(test);
    } else {
        println!("dashboard::{name} SKIPPED: no chromium or no chromedriver; scripts/setup.sh brings them");
    }
}

/// The events of one who watches.
pub struct Watch {
    response: Response,
    unread: String,
}

impl Watch {
    /// Begins to watch `core` with `token`.
    pub async fn begin(core: &Core, token: &str) -> Self {
        let response = Self::ask(core, token).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, unread: String::new() }
    }

    /// The answer to the call, not yet read.
    pub async fn ask(core: &Core, token: &str) -> Response {
        // Without the limit on the time of a whole answer, which this one has none of.
        let request = core.client().request(Method::GET, &core.admin_url("/admin/v1/live"));
        request.bearer_auth(token).timeout(10 * SOON).send().await.unwrap()
    }

    /// The next event's name and data; `None` when the stream has ended.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let field = |name| event.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
                let read = (field("event:").to_owned(), serde_json::from_str(field("data:")).unwrap());
                self.unread = String::from(rest);
                return Some(read);
            }
            let chunk = timeout(SOON, self.response.chunk()).await.expect("events within 20 s");
            self.unread.push_str(std::str::from_utf8(&chunk.ok()??).unwrap());
        }
    }

    /// The first snapshot of which `wanted` holds.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = timeout(2 * SOON, async {
            loop {
                let (name, data) = self.next().await.expect("the stream goes on");
                if name == "snapshot" && wanted(&data) {
                    return data;
                }
                last = data;
            }
        });
        let found = found.await;
        found.unwrap_or_else(|_| panic!("not {what} within 40 s: {last:#}"))
    }
}

/// What a snapshot says of one campaign.
pub fn campaign<'a>(snapshot: &'a Value, id: &str) -> &'a Value {
    let listed = snapshot["campaigns"]["listed"].as_array().unwrap();
    listed.iter().find(|campaign| campaign["id"] == id).unwrap_or(&Value::Null)
}

/// How often claims were refused for `code`.
pub fn refused(snapshot: &Value, code: &str) -> u64 {
    let reasons = snapshot["refusals"]["by_reason"].as_array().unwrap();
    reasons.iter().find(|reason| reason["code"] == code).map_or(0, |reason| reason["count"].as_u64().unwrap())
}
