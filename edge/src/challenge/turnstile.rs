//! Cloudflare's Turnstile: a token of its widget, verified by its server.

use std::fmt;

use claimgate_shared::challenge::TurnstileWidget;
use serde::Serialize;
use serde_json::Value;
use wasm_bindgen::JsValue;
use worker::Env;

use crate::auth::key_url::KeyUrl;
use crate::outbound;

/// The base URL of the service.
pub(super) const URL: &str = "https://challenges.cloudflare.com/turnstile/v0";
/// Maximum length of a token, in bytes, according to Cloudflare's documentation.
pub(super) const TOKEN_BYTES_MAX: usize = 2_048;
/// The `action` of the page's widget. A token of the operator's other widgets has a different one.
const ACTION: &str = "claimgate";
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// The settings.
#[derive(Debug, Clone)]
pub struct Turnstile {
    /// `TURNSTILE_SECRET`.
    pub(super) secret: Secret,
    /// `TURNSTILE_SITE_KEY`.
    pub(super) site_key: String,
    /// `TURNSTILE_HOSTNAMES`: the hosts whose page may show the widget.
    pub(super) hostnames: Vec<String>,
    /// The base URL of the service. `TURNSTILE_URL` replaces it by a stand-in on this machine.
    pub(super) url: KeyUrl,
    /// `CHALLENGE_ON_FAILURE`: whether users get a pass while the service is down.
    pub(super) fail_open: bool,
}

/// The widget's secret. Its `Debug` output hides it.
#[derive(Clone)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The service's result for a token. The texts are for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The user has solved the challenge.
    Solved,
    /// The token is wrong, expired, already used, or of another widget.
    Refused(String),
    /// The service does not answer, or reports that it is down.
    Unanswered(String),
    /// The response is not documented.
    Unusable(String),
}

#[derive(Serialize)]
struct Question<'a> {
    secret: &'a str,
    response: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remoteip: Option<String>,
}

impl Turnstile {
    /// Returns how the page shows the widget.
    pub(super) fn widget(&self) -> TurnstileWidget {
        TurnstileWidget {
            site_key: self.site_key.clone(),
            action: ACTION.to_owned(),
            script: format!("{}/api.js?render=explicit", self.url.as_str()),
        }
    }

    /// Returns the origin of the widget's script and frame.
    pub(super) fn origin(&self) -> &str {
        let url = self.url.as_str();
        let host_at = url.find("://").map_or(0, |at| at + 3);
        url[host_at..].find('/').map_or(url, |end| &url[..host_at + end])
    }

    /// Asks the service about `token`, sent from `address`.
    pub(super) async fn verify(&self, env: &Env, token: &str, address: Option<String>) -> Verdict {
        let question = Question { secret: &self.secret.0, response: token, remoteip: address };
        let request = serde_json::to_string(&question)
            .map_err(|error| error.to_string())
            .and_then(|body| self.request(&body).map_err(|error| format!("{error:?}")));
        let request = match request {
            Ok(request) => request,
            Err(why) => return Verdict::Unusable(why),
        };
        let answer = async {
            let response = outbound::send(&outbound::fetcher(env, &self.url), &request).await?;
            Ok((response.status(), outbound::body(&response, ANSWER_BYTES_MAX).await?))
        };
        match answer.await {
            Ok((status, body)) => self.judge(status, &body),
            Err(why) => Verdict::Unanswered(why),
        }
    }

    fn request(&self, body: &str) -> Result<web_sys::Request, JsValue> {
        let init = outbound::bounded_init();
        init.set_method("POST");
        init.set_body(&body.into());
        let request =
            web_sys::Request::new_with_str_and_init(&format!("{}/siteverify", self.url.as_str()), &init)?;
        request.headers().set("content-type", "application/json")?;
        Ok(request)
    }

    fn judge(&self, status: u16, body: &[u8]) -> Verdict {
        if status >= 500 {
            return Verdict::Unanswered(format!("status {status}"));
        }
        // Not a separate type: the code that parses it would make the Worker larger.
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |member: &str| bounded(answer[member].as_str().unwrap_or_default());
        match answer["success"].as_bool() {
            Some(true) if status == 200 => {}
            Some(false) => {
                let codes = serde_json::to_vec(&answer["error-codes"]).unwrap_or_default();
                return Verdict::Refused(bounded(&String::from_utf8_lossy(&codes)));
            }
            _ => return Verdict::Unusable(format!("status {status} without a verdict")),
        }
        let (hostname, action) = (text("hostname"), text("action"));
        if !self.hostnames.contains(&hostname) {
            return Verdict::Refused(format!("solved on {hostname:?}"));
        }
        if action != ACTION {
            return Verdict::Refused(format!("solved for the action {action:?}"));
        }
        Verdict::Solved
    }
}

fn bounded(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turnstile(url: &str) -> Turnstile {
        Turnstile {
            secret: Secret("1x0000000000000000000000000000000AA".to_owned()),
            site_key: "1x00000000000000000000AA".to_owned(),
            hostnames: vec!["shop.example".to_owned(), "www.shop.example".to_owned()],
            url: KeyUrl::parse(url).unwrap(),
            fail_open: false,
        }
    }

    #[test]
    fn only_a_complete_verdict_counts() {
        let refused = |why: &str| Verdict::Refused(why.to_owned());
        let unusable = |why: &str| Verdict::Unusable(why.to_owned());
        let success = r#"{"success":true,"challenge_ts":"2026-11-28T08:00:00.000Z","hostname":"www.shop.example","error-codes":[],"action":"claimgate","cdata":"","metadata":{"interactive":false}}"#;
        for (status, body, verdict) in [
            (200, success, Verdict::Solved),
            (
                200,
                r#"{"success":false,"error-codes":["timeout-or-duplicate"]}"#,
                refused(r#"["timeout-or-duplicate"]"#),
            ),
            (200, r#"{"success":false,"error-codes":["internal-error"]}"#, refused(r#"["internal-error"]"#)),
            (200, r#"{"success":false}"#, refused("null")),
            (400, r#"{"success":false,"error-codes":["bad-request"]}"#, refused(r#"["bad-request"]"#)),
            (
                200,
                r#"{"success":true,"hostname":"evil.example","action":"claimgate"}"#,
                refused(r#"solved on "evil.example""#),
            ),
            (200, r#"{"success":true,"action":"claimgate"}"#, refused(r#"solved on """#)),
            (
                200,
                r#"{"success":true,"hostname":"shop.example","action":"login"}"#,
                refused(r#"solved for the action "login""#),
            ),
            (200, r#"{"success":true,"hostname":"shop.example"}"#, refused(r#"solved for the action """#)),
            (
                200,
                r#"{"success":"true","hostname":"shop.example","action":"claimgate"}"#,
                unusable("status 200 without a verdict"),
            ),
            (200, "<html>", unusable("status 200 without a verdict")),
            (200, "", unusable("status 200 without a verdict")),
            (302, "", unusable("status 302 without a verdict")),
            (429, "", unusable("status 429 without a verdict")),
            (302, success, unusable("status 302 without a verdict")),
            (500, success, Verdict::Unanswered("status 500".to_owned())),
            (503, "", Verdict::Unanswered("status 503".to_owned())),
        ] {
            assert_eq!(turnstile(URL).judge(status, body.as_bytes()), verdict, "{status} {body}");
        }
    }

    #[test]
    fn the_page_may_load_the_widget_from_one_origin() {
        assert_eq!(turnstile(URL).origin(), "https://challenges.cloudflare.com");
        let script = "https://challenges.cloudflare.com/turnstile/v0/api.js?render=explicit";
        assert_eq!(turnstile(URL).widget().script, script);
        assert_eq!(turnstile("http://127.0.0.1:9").origin(), "http://127.0.0.1:9");
    }

    #[test]
    fn the_secret_is_not_in_debug_output() {
        assert!(!format!("{:?}", turnstile(URL)).contains("1x0000000000000000000000000000000AA"));
    }
}
