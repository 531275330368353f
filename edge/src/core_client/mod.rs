//! The one way to core: every call is built from nothing, signed, and bounded in time.

pub mod circuit_breaker;

use std::cell::{OnceCell, RefCell};
use std::fmt;

use claimgate_shared::problem::{PROBLEM_JSON, object};
use claimgate_shared::signature::{
    CLIENT_IP_HEADER, KEY_HEADER, SIGNATURE_HEADER, SignedParts, TIMESTAMP_HEADER, USER_HEADER,
};
use claimgate_shared::{Attempt, Code, Problem};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use wasm_bindgen::{JsCast as _, JsValue, intern};
use web_sys::{AbortSignal, Headers, Request, RequestInit, RequestRedirect, Response, WorkerGlobalScope};
use worker::Env;
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Math, Uint8Array};

use self::circuit_breaker::{Breaker, Breakers, Kind};
use crate::clock::{self, age_ms};
use crate::config::Config;
use crate::response::{REQUEST_ID_HEADER, Reply};

/// Within this a call has its answer, the retry included.
const CALL_MS_MAX: i64 = 2_000;
/// With less than this left, a second try could only add load.
const TRY_MS_MIN: i64 = 100;

const JSON: &str = "application/json";

thread_local! {
    static BREAKERS: RefCell<Breakers> = RefCell::default();
    // An isolate's environment never changes.
    static FETCHER: OnceCell<WorkerGlobalScope> = const { OnceCell::new() };
}

/// The way to core: through a service binding where there is one, else over the network.
#[derive(Debug)]
pub struct Origin<'a> {
    config: &'a Config,
    /// The binding, or the global scope: both are asked by a `fetch` of the same kind.
    fetcher: WorkerGlobalScope,
}

impl<'a> Origin<'a> {
    /// The service binding's name.
    pub const BINDING: &'static str = "CORE";

    /// The way that `env` has.
    pub fn new(env: &Env, config: &'a Config) -> Self {
        let look_up = || match env.service(Self::BINDING) {
            Ok(binding) => binding.into_rpc(),
            Err(_) => js_sys::global().unchecked_into(),
        };
        Self { config, fetcher: FETCHER.with(|fetcher| fetcher.get_or_init(look_up).clone()) }
    }

    async fn fetch(&self, request: &Request) -> Result<Response, JsValue> {
        JsFuture::from(self.fetcher.fetch_with_request(request)).await?.dyn_into()
    }
}

/// A call to core's internal API.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What core needs to answer it.
    pub kind: Kind,
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
    /// Which try of a claim this is, as the client says it.
    pub attempt: Attempt,
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
    heard: Heard,
}

/// Why a try brought no answer that can be passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    /// No answer, half of one, or one that is not core's: it may have decided, so the same key asks again.
    Lost(String),
    /// Core does not trust this edge: a key, or a clock, is wrong, and asking again will not change it.
    Distrusted(Code),
}

impl<'a> Call<'a> {
    /// A `GET` in nobody's name, to be filled in.
    pub fn new(kind: Kind, path: &'a str, request_id: &'a str) -> Self {
        let (user, client_ip, idempotency_key) = ("", "", "");
        let attempt = Attempt::Unknown;
        Self { kind, path, body: None, user, client_ip, idempotency_key, attempt, request_id }
    }

    /// What `with` does to the breaker of this kind of call.
    fn breaker<T>(&self, with: impl FnOnce(&mut Breaker) -> T) -> T {
        BREAKERS.with_borrow_mut(|breakers| with(breakers.of(self.kind)))
    }

    /// Core's answer, or `unavailable` when there is none in time: then the outcome is unknown.
    pub async fn send(&self, origin: &Origin<'_>) -> Result<Answer, Problem> {
        let began_at = clock::now()?;
        // The second try is for an answer lost on the way, whatever it was: it may have been a grant. A core that is merely
        // slow is waited for: asking it twice would make it slower.
        for attempt in [self.attempt, Attempt::Unknown] {
            let now = clock::now()?;
            let left_ms = CALL_MS_MAX - age_ms(began_at, now).min(CALL_MS_MAX);
            if left_ms < TRY_MS_MIN || !self.breaker(|breaker| breaker.lets_through(now)) {
                break;
            }
            match (Self { attempt, ..*self }).try_once(origin, left_ms).await {
                Ok(answer) => {
                    self.breaker(Breaker::succeeded);
                    return Ok(answer);
                }
                Err(Failure::Lost(why)) => {
                    let ended_at = clock::now()?;
                    self.breaker(|breaker| breaker.failed(now, ended_at, Math::random()));
                    worker::console_warn!("{} no answer from core: {why}", self.request_id);
                }
                Err(Failure::Distrusted(code)) => {
                    self.breaker(Breaker::succeeded);
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

    async fn try_once(&self, origin: &Origin<'_>, limit_ms: i64) -> Result<Answer, Failure> {
        let request = self.request(origin.config, limit_ms).map_err(|error| lost(&error))?;
        let response = origin.fetch(&request).await.map_err(|error| lost(&error))?;
        let body = bytes(&response).await.map_err(|error| lost(&error))?;
        let header = |name: &str| response.headers().get(intern(name)).ok().flatten();
        Answer::new(response.status(), body, header)
    }

    fn request(&self, config: &Config, limit_ms: i64) -> Result<Request, JsValue> {
        let init = RequestInit::new();
        init.set_redirect(RequestRedirect::Manual);
        init.set_headers(self.headers(config)?.as_ref());
        if let Some(body) = self.body {
            init.set_method("POST");
            init.set_body(&body.into());
        }
        // Ends the reading of the body, too.
        let limit = AbortSignal::timeout_with_u32(u32::try_from(limit_ms).unwrap_or_default());
        init.set_signal(Some(&limit));
        let url = format!("{}{}", config.core_url, self.path);
        Request::new_with_str_and_init(&url, &init)
    }

    fn headers(&self, config: &Config) -> Result<Headers, JsValue> {
        let now = clock::now().map_err(|problem| problem.detail)?;
        let content_type = if self.body.is_some() { JSON } else { "" };
        let signed = SignedParts {
            method: if self.body.is_some() { "POST" } else { "GET" },
            path_and_query: self.path,
            content_type,
            body: self.body.unwrap_or_default().as_bytes(),
            user: self.user,
            client_ip: self.client_ip,
            idempotency_key: self.idempotency_key,
            attempt: self.attempt,
        };
        let headers = Headers::new()?;
        let set = |name: &str, value: &str| headers.set(intern(name), value);
        if !content_type.is_empty() {
            set("content-type", content_type)?;
        }
        if self.attempt == Attempt::First {
            set(Attempt::HEADER, Attempt::FIRST)?;
        }
        set(REQUEST_ID_HEADER, self.request_id)?;
        set(KEY_HEADER, &config.edge_key.kid)?;
        set(TIMESTAMP_HEADER, &now.as_ms().to_string())?;
        set(USER_HEADER, self.user)?;
        set(CLIENT_IP_HEADER, self.client_ip)?;
        set(SIGNATURE_HEADER, &signed.sign(&config.edge_key, now))?;
        Ok(headers)
    }
}

/// The problem of an answer that core should not have given. What is wrong with it is for the log.
pub fn not_understood(why: &dyn fmt::Display) -> Problem {
    worker::console_error!("core's answer was not understood: {why}");
    Problem::new(Code::Unavailable, "core's answer was not understood")
}

fn lost(error: &JsValue) -> Failure {
    Failure::Lost(format!("{error:?}"))
}

/// All of the body in one wait; worker's own way reads it chunk by chunk.
async fn bytes(response: &Response) -> Result<Vec<u8>, JsValue> {
    let buffer = JsFuture::from(response.array_buffer()?).await?;
    Ok(Uint8Array::new(&buffer).to_vec())
}

/// What the edge itself reads in an answer; the rest passes on unread. Core may be newer: what it says otherwise than the
/// edge expects it is as if it had not said it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Heard {
    /// What went wrong, if anything.
    #[serde(rename = "code")]
    pub refusal: Option<Refusal>,
    /// The campaign's version.
    #[serde(default, deserialize_with = "if_understood")]
    pub version: Option<u64>,
    /// What is left: of the campaign, and in a denial of the limit that refused.
    #[serde(default, deserialize_with = "if_understood")]
    pub remaining: Option<u32>,
}

/// What went wrong, in core's word for it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Refusal {
    /// A code whose meaning the edge knows.
    Known(Code),
    /// One that core has learnt since: it is for whoever asked.
    Other(String),
}

fn if_understood<'de, T: Deserialize<'de>, D: Deserializer<'de>>(member: D) -> Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Member<T> {
        Understood(T),
        Not(IgnoredAny),
    }
    Member::deserialize(member).map(|member| match member {
        Member::Understood(value) => Some(value),
        Member::Not(_) => None,
    })
}

impl Heard {
    /// What core's JSON object says.
    fn of(body: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Body(#[serde(deserialize_with = "object")] Heard);

        let Body(heard) = serde_json::from_slice(body)?;
        Ok(match heard.refusal {
            // What its members mean is as new as its code.
            Some(Refusal::Other(_)) => Self { refusal: heard.refusal, ..Self::default() },
            Some(Refusal::Known(_)) | None => heard,
        })
    }

    /// Whether core has refused with `code`.
    pub fn is(&self, code: Code) -> bool {
        self.refusal == Some(Refusal::Known(code))
    }

    /// Units left of the campaign. Of the denials only "sold out, none left" says that, and to everybody.
    pub fn left(&self) -> Option<u32> {
        match self.refusal {
            None => self.remaining,
            Some(Refusal::Known(Code::SoldOut)) => self.remaining.filter(|remaining| *remaining == 0),
            Some(_) => None,
        }
    }
}

impl Answer {
    /// Core's own answer, as told from half of one, and from one of something in between.
    fn new(status: u16, body: Vec<u8>, header: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let heard = Heard::of(&body)
            .map_err(|error| Failure::Lost(format!("{status} with a broken body: {error}")))?;
        let is_problem = || header("content-type").is_some_and(|kind| kind.starts_with(PROBLEM_JSON));
        match heard.refusal {
            None if (200..300).contains(&status) => {}
            Some(Refusal::Known(code @ (Code::Unauthenticated | Code::Forbidden))) => {
                return Err(Failure::Distrusted(code));
            }
            Some(_) if (400..600).contains(&status) && is_problem() => {}
            _ => return Err(Failure::Lost(format!("{status} that is no answer of core's"))),
        }
        Ok(Self {
            status,
            body,
            retry_after: header("retry-after"),
            is_replay: header("idempotent-replayed").as_deref() == Some("true"),
            heard,
        })
    }

    /// What it says of its campaign.
    pub fn heard(&self) -> &Heard {
        &self.heard
    }

    /// What core said.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body).map_err(|error| not_understood(&error))
    }

    /// The same answer for the browser, the request's id in it being the one that was sent to core.
    pub fn into_reply(self) -> Reply {
        let content_type = if self.heard.refusal.is_none() { JSON } else { PROBLEM_JSON };
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

    fn typed(content_type: &str, status: u16, body: &str) -> Result<Answer, Failure> {
        let header = |name: &str| (name == "content-type").then(|| content_type.to_owned());
        Answer::new(status, body.as_bytes().to_vec(), header)
    }

    fn answer(status: u16, body: &str) -> Result<Answer, Failure> {
        typed(if status < 400 { JSON } else { PROBLEM_JSON }, status, body)
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
            (200, "[]"),
            (409, r#"["sold_out",3,0]"#),
            (409, r#"{"code":7}"#),
            (302, r#"{"code":"moved"}"#),
            (200, r#"{"code":"sold_out"}"#),
        ] {
            assert!(matches!(answer(status, body), Err(Failure::Lost(_))), "{status} {body}");
        }
        let proxys = typed(JSON, 502, r#"{"code":"bad_gateway"}"#);
        assert!(matches!(proxys, Err(Failure::Lost(_))), "{proxys:?}");
    }

    #[test]
    fn nothing_is_heard_in_a_refusal_whose_code_is_not_known() {
        for status in [400, 409, 451, 500, 503] {
            let body = r#"{"code":"of tomorrow","version":9,"remaining":0}"#;
            let heard = answer(status, body).unwrap().heard;
            let refusal = Some(Refusal::Other("of tomorrow".to_owned()));
            assert_eq!(heard, Heard { refusal, ..Heard::default() }, "{status}");
            assert_eq!(heard.left(), None);
        }
    }

    #[test]
    fn members_that_are_not_understood_are_not_heard() {
        for members in
            [r#""version":"2.1","remaining":-1"#, r#""version":{"a":[]},"remaining":null"#, r#""x":1"#]
        {
            let granted = answer(201, &format!(r#"{{"claim":{{}},{members}}}"#)).unwrap();
            assert_eq!(*granted.heard(), Heard::default(), "{members}");
            let refused = answer(409, &format!(r#"{{"code":"sold_out",{members}}}"#)).unwrap();
            assert!(refused.heard().is(Code::SoldOut) && refused.heard().left().is_none(), "{members}");
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
        let reply = Answer::new(200, b"{}".to_vec(), header).unwrap().into_reply();
        let expected = Reply::empty(200)
            .with_body(JSON, b"{}".to_vec())
            .with("retry-after", "3")
            .with("idempotent-replayed", "true");
        assert_eq!(reply, expected);
    }
}
