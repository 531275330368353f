//! The one way to core: every call is built from nothing, signed, and bounded in time.

use claimgate_shared::signature::{
    CLIENT_IP_HEADER, KEY_HEADER, SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER,
};
use claimgate_shared::{Code, Problem};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use worker::web_sys::AbortSignal as Timeout;
use worker::{
    AbortSignal, CacheMode, Fetch, Headers, Method, Request, RequestInit, RequestRedirect, Response,
};

use crate::clock;
use crate::config::Config;
use crate::reply::{REQUEST_ID_HEADER, Reply};

/// Within this a call has its answer, the retry included.
const CALL_MS_MAX: i64 = 2_000;
/// The second is for an answer lost on the way. A core that is merely slow is waited for: asking it twice would
/// make it slower.
const TRIES_MAX: u32 = 2;
/// With less than this left, a second try could only add load.
const TRY_MS_MIN: i64 = 100;

const JSON: &str = "application/json";

/// A call to core's internal API.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// Path on core; none of them has a query.
    pub path: &'a str,
    /// A `POST` of this JSON; without it a `GET`.
    pub body: Option<&'a str>,
    /// The authenticated user; empty for none.
    pub user: &'a str,
    /// The client's address; empty when unknown.
    pub client_ip: &'a str,
    /// The claim's idempotency key; empty where there is none.
    pub idempotency_key: &'a str,
    /// The request's id.
    pub request_id: &'a str,
}

/// What core said, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    status: u16,
    /// Its JSON.
    pub body: Vec<u8>,
    retry_after: Option<String>,
    is_replay: bool,
}

/// Why a try brought no answer that can be passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    /// No answer, half of one, or one that is not core's: it may have decided, so the same key asks again.
    Lost(String),
    /// Core does not trust this edge: a key, or a clock, is wrong, and asking again will not change it.
    Distrusted(Code),
}

impl Call<'_> {
    /// Core's answer, or `unavailable` when there is none in time: then the outcome is unknown.
    pub async fn send(&self, config: &Config) -> Result<Answer, Problem> {
        let began_at = clock::now()?;
        for _ in 0..TRIES_MAX {
            let left_ms = CALL_MS_MAX - (clock::now()?.as_ms() - began_at.as_ms());
            if left_ms < TRY_MS_MIN {
                break;
            }
            match self.try_once(config, left_ms).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Lost(why)) => {
                    worker::console_warn!("{} no answer from core: {why}", self.request_id);
                }
                Err(Failure::Distrusted(code)) => {
                    worker::console_error!(
                        "{} core answers {}: check EDGE_KEY, and both clocks",
                        self.request_id,
                        code.as_str()
                    );
                    break;
                }
            }
        }
        Err(Problem::new(
            Code::Unavailable,
            "no answer in time: the outcome is unknown, so ask again with the same key",
        ))
    }

    async fn try_once(&self, config: &Config, limit_ms: i64) -> Result<Answer, Failure> {
        let lost = |error: worker::Error| Failure::Lost(error.to_string());
        let request = self.request(config).map_err(lost)?;
        let limit_ms = u32::try_from(limit_ms).unwrap_or_default();
        // Ends the reading of the body, too.
        let signal = AbortSignal::from(Timeout::timeout_with_u32(limit_ms));
        let mut response = Fetch::Request(request).send_with_signal(&signal).await.map_err(lost)?;
        let body = response.bytes().await.map_err(lost)?;
        Answer::new(response.status_code(), body, header(&response)).check()
    }

    fn request(&self, config: &Config) -> worker::Result<Request> {
        let mut init = RequestInit::new();
        init.with_headers(self.headers(config)?)
            .with_redirect(RequestRedirect::Manual)
            .with_cache(CacheMode::NoStore);
        if let Some(body) = self.body {
            init.with_method(Method::Post).with_body(Some(body.into()));
        }
        Request::new_with_init(&format!("{}{}", config.core_url, self.path), &init)
    }

    fn headers(&self, config: &Config) -> worker::Result<Headers> {
        let now = clock::now().map_err(|problem| worker::Error::RustError(problem.detail))?;
        let content_type = if self.body.is_some() { JSON } else { "" };
        let signed = SignedParts {
            method: if self.body.is_some() { "POST" } else { "GET" },
            path_and_query: self.path,
            content_type,
            body: self.body.unwrap_or_default().as_bytes(),
            user: self.user,
            client_ip: self.client_ip,
            idempotency_key: self.idempotency_key,
        };
        let headers = Headers::new();
        if !content_type.is_empty() {
            headers.set("content-type", content_type)?;
        }
        headers.set(REQUEST_ID_HEADER, self.request_id)?;
        headers.set(KEY_HEADER, &config.edge_key.kid)?;
        headers.set(TIMESTAMP_HEADER, &now.as_ms().to_string())?;
        headers.set(USER_HEADER, self.user)?;
        headers.set(CLIENT_IP_HEADER, self.client_ip)?;
        headers.set(SIGNATURE_HEADER, &signed.sign(&config.edge_key, now))?;
        Ok(headers)
    }
}

fn header(response: &Response) -> impl Fn(&str) -> Option<String> {
    |name| response.headers().get(name).ok().flatten()
}

/// What matters of a problem; the rest passes on unread.
#[derive(Deserialize)]
struct ProblemHead {
    code: Code,
    detail: String,
}

impl Answer {
    fn new(status: u16, body: Vec<u8>, header: impl Fn(&str) -> Option<String>) -> Self {
        Self {
            status,
            body,
            retry_after: header("retry-after"),
            is_replay: header("idempotent-replayed").as_deref() == Some("true"),
        }
    }

    /// Tells core's own answer from half of one, and from one of something in between.
    fn check(self) -> Result<Self, Failure> {
        if (200..300).contains(&self.status) {
            return match serde_json::from_slice::<IgnoredAny>(&self.body) {
                Ok(_) => Ok(self),
                Err(error) => Err(Failure::Lost(format!("{} with a broken body: {error}", self.status))),
            };
        }
        match serde_json::from_slice::<ProblemHead>(&self.body) {
            Ok(problem) if matches!(problem.code, Code::Unauthenticated | Code::Forbidden) => {
                Err(Failure::Distrusted(problem.code))
            }
            Ok(_) => Ok(self),
            Err(_) => Err(Failure::Lost(format!("{} that is no problem of core's", self.status))),
        }
    }

    /// Whether core says that there is no such thing.
    pub fn is_not_found(&self) -> bool {
        self.status == Code::NotFound.status()
    }

    /// What core said, or the problem that it had.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        if self.status >= 400 {
            let head: ProblemHead = self.parse()?;
            return Err(Problem::new(head.code, head.detail));
        }
        self.parse()
    }

    fn parse<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body).map_err(|error| {
            Problem::new(Code::Unavailable, format!("core's answer was not understood: {error}"))
        })
    }

    /// The same answer for the browser, the request's id in it being the one that was sent to core.
    pub fn into_reply(self) -> Reply {
        let content_type = if self.status < 400 { JSON } else { claimgate_shared::problem::PROBLEM_JSON };
        let mut reply = Reply::empty(self.status).with_body(content_type, self.body);
        if let Some(seconds) = self.retry_after {
            reply = reply.with("retry-after", seconds);
        }
        if self.is_replay {
            reply = reply.with("idempotent-replayed", "true");
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Result<Answer, Failure> {
        Answer::new(status, body.as_bytes().to_vec(), |_| None).check()
    }

    fn problem(code: Code) -> String {
        serde_json::to_string(&Problem::new(code, "why")).unwrap()
    }

    #[test]
    fn cores_own_answers_pass() {
        assert!(answer(201, r#"{"claim":{}}"#).is_ok());
        for code in
            [Code::SoldOut, Code::NotStarted, Code::ClaimNotFound, Code::CampaignNotReady, Code::Overloaded]
        {
            assert!(answer(code.status(), &problem(code)).is_ok(), "{code:?}");
        }
    }

    #[test]
    fn half_an_answer_and_a_strangers_are_lost() {
        for (status, body) in [
            (201, ""),
            (201, r#"{"claim":{"#),
            (302, ""),
            (502, "<html>Bad gateway</html>"),
            (503, "{}"),
            (404, r#"{"code":"of something else","detail":""}"#),
        ] {
            assert!(matches!(answer(status, body), Err(Failure::Lost(_))), "{status} {body}");
        }
    }

    #[test]
    fn cores_distrust_is_not_the_users_fault() {
        for code in [Code::Unauthenticated, Code::Forbidden] {
            assert_eq!(answer(code.status(), &problem(code)), Err(Failure::Distrusted(code)));
        }
    }

    #[test]
    fn what_goes_with_an_answer_goes_on() {
        let header = |name: &str| match name {
            "retry-after" => Some("3".to_owned()),
            "idempotent-replayed" => Some("true".to_owned()),
            _ => None,
        };
        let reply = Answer::new(200, b"{}".to_vec(), header).into_reply();
        let expected = Reply::empty(200)
            .with_body(JSON, b"{}".to_vec())
            .with("retry-after", "3")
            .with("idempotent-replayed", "true");
        assert_eq!(reply, expected);
    }
}
