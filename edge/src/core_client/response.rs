//! Responses from core, distinguished from truncated responses and from a proxy's.

use std::fmt;

use claimgate_shared::http::{JSON, REPLAYED, REPLAYED_HEADER};
use claimgate_shared::problem::{PROBLEM_JSON, object};
use claimgate_shared::{Code, Problem, Version};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::response::Response;

/// Why an attempt produced no response to return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// No response, a truncated one, or one not from core. Core may have decided, so a retry must use the same key.
    Lost(String),
    /// Core rejected this edge's signature: a key or a clock is wrong, so a retry cannot help.
    EdgeRejected(Code),
}

/// A complete response from core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreResponse {
    status: u16,
    body: Vec<u8>,
    retry_after: Option<String>,
    is_replay: bool,
    summary: Summary,
}

impl CoreResponse {
    /// Parses a response. Fails if it is truncated or comes from a proxy in between.
    pub(super) fn new(
        status: u16,
        body: Vec<u8>,
        header: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let summary = Summary::parse(&body)
            .map_err(|error| Failure::Lost(format!("{status} with a malformed body: {error}")))?;
        let is_problem = || header("content-type").is_some_and(|kind| kind.starts_with(PROBLEM_JSON));
        match summary.problem {
            None if (200..300).contains(&status) => {}
            Some(ProblemCode::Known(code @ (Code::Unauthenticated | Code::Forbidden))) => {
                return Err(Failure::EdgeRejected(code));
            }
            Some(_) if (400..600).contains(&status) && is_problem() => {}
            _ => return Err(Failure::Lost(format!("{status} without core's format, so not from core"))),
        }
        Ok(Self {
            status,
            body,
            retry_after: header("retry-after"),
            is_replay: header(REPLAYED_HEADER).as_deref() == Some(REPLAYED),
            summary,
        })
    }

    /// Returns whether core could not decide: its Redis is unavailable, or it is starting or stopping.
    /// Another core may be able to.
    pub(super) fn is_undecided(&self) -> bool {
        self.summary.is_problem(Code::Unavailable)
    }

    /// Returns whether core was too busy to process the request.
    pub(super) fn is_overloaded(&self) -> bool {
        self.summary.is_problem(Code::Overloaded)
    }

    /// Returns the members that the edge itself uses.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Parses the body as `T`.
    ///
    /// # Errors
    /// `unavailable` if the body is not a `T`; the reason is logged.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body).map_err(|error| invalid_response(&error))
    }

    /// Returns the response with `more`, a string without quotes and backslashes, at the end of the
    /// problem's `detail`. A `detail` with an escape stays as it is.
    #[must_use]
    pub fn with_more_detail(mut self, more: &str) -> Self {
        #[derive(Deserialize)]
        struct Detail<'a> {
            detail: &'a str,
        }
        // A `detail` without escapes is a part of the body. To parse and write all members would take 3 KB of
        // the Worker.
        let end = serde_json::from_slice::<Detail<'_>>(&self.body)
            .map(|Detail { detail }| detail.as_bytes().as_ptr_range().end.addr() - self.body.as_ptr().addr());
        if let Ok(end) = end {
            self.body.splice(end..end, more.bytes());
        }
        self
    }

    /// Returns the response for the browser. A problem's `instance` needs no change: core has the browser's
    /// request id.
    pub fn into_response(self) -> Response {
        let content_type = if self.summary.problem.is_none() { JSON } else { PROBLEM_JSON };
        let mut response = Response::empty(self.status).with_body(content_type, self.body);
        if let Some(seconds) = self.retry_after {
            response = response.with("retry-after", seconds);
        }
        if self.is_replay {
            response = response.with(REPLAYED_HEADER, REPLAYED);
        }
        response
    }
}

/// Returns the problem for an invalid response from core: `unavailable`. Logs `why`, which is not for the
/// client.
pub fn invalid_response(why: &dyn fmt::Display) -> Problem {
    worker::console_error!("core sent an invalid response: {why}");
    Problem::new(Code::Unavailable, "core sent an invalid response")
}

/// The members of a response that the edge itself uses; the rest passes through. Core may be newer than the
/// edge, so a member of an unexpected type counts as absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Summary {
    /// The problem's code; `None` if the response is not a problem.
    #[serde(rename = "code")]
    pub problem: Option<ProblemCode>,
    /// The campaign's version.
    #[serde(default, deserialize_with = "if_readable")]
    pub version: Option<Version>,
    /// Units left in the campaign; in a denial, the units that the named limit still allows.
    #[serde(default, deserialize_with = "if_readable")]
    pub remaining: Option<u32>,
}

/// A problem's code, possibly one that is unknown to this edge.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ProblemCode {
    /// A code known to this edge.
    Known(Code),
    /// A code added by a newer core. The edge only passes it on.
    Unrecognized(String),
}

fn if_readable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(member: D) -> Result<Option<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Member<T> {
        Readable(T),
        Other(IgnoredAny),
    }
    Member::deserialize(member).map(|member| match member {
        Member::Readable(value) => Some(value),
        Member::Other(_) => None,
    })
}

impl Summary {
    /// Parses core's JSON object.
    fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Body(#[serde(deserialize_with = "object")] Summary);

        let Body(summary) = serde_json::from_slice(body)?;
        Ok(match summary.problem {
            // The members of an unknown problem may mean anything.
            Some(ProblemCode::Unrecognized(_)) => Self { problem: summary.problem, ..Self::default() },
            Some(ProblemCode::Known(_)) | None => summary,
        })
    }

    /// Returns whether the response is a problem with `code`.
    pub fn is_problem(&self, code: Code) -> bool {
        self.problem == Some(ProblemCode::Known(code))
    }

    /// Returns the units left in the campaign, if known. The only denial that reveals them is `sold_out` with
    /// 0 left.
    pub fn campaign_remaining(&self) -> Option<u32> {
        match self.problem {
            None => self.remaining,
            Some(ProblemCode::Known(Code::SoldOut)) => self.remaining.filter(|remaining| *remaining == 0),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(content_type: &str, status: u16, body: &str) -> Result<CoreResponse, Failure> {
        let header = |name: &str| (name == "content-type").then(|| content_type.to_owned());
        CoreResponse::new(status, body.as_bytes().to_vec(), header)
    }

    fn response(status: u16, body: &str) -> Result<CoreResponse, Failure> {
        typed(if status < 400 { JSON } else { PROBLEM_JSON }, status, body)
    }

    fn problem(code: Code) -> String {
        serde_json::to_string(&Problem::new(code, "why")).unwrap()
    }

    #[test]
    fn cores_own_responses_are_accepted() {
        assert!(response(201, r#"{"claim":{}}"#).is_ok());
        for code in
            [Code::SoldOut, Code::NotStarted, Code::ClaimNotFound, Code::CampaignNotReady, Code::Overloaded]
        {
            assert!(response(code.status(), &problem(code)).is_ok(), "{code:?}");
        }
    }

    #[test]
    fn truncated_and_proxy_responses_count_as_lost() {
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
            assert!(matches!(response(status, body), Err(Failure::Lost(_))), "{status} {body}");
        }
        let proxys = typed(JSON, 502, r#"{"code":"bad_gateway"}"#);
        assert!(matches!(proxys, Err(Failure::Lost(_))), "{proxys:?}");
    }

    #[test]
    fn members_of_a_problem_with_an_unknown_code_are_ignored() {
        for status in [400, 409, 451, 500, 503] {
            let body = r#"{"code":"from the future","version":9,"remaining":0}"#;
            let summary = response(status, body).unwrap().summary;
            let problem = Some(ProblemCode::Unrecognized("from the future".to_owned()));
            assert_eq!(summary, Summary { problem, ..Summary::default() }, "{status}");
            assert_eq!(summary.campaign_remaining(), None);
        }
    }

    #[test]
    fn members_of_a_wrong_type_count_as_absent() {
        for members in
            [r#""version":"2.1","remaining":-1"#, r#""version":{"a":[]},"remaining":null"#, r#""x":1"#]
        {
            let granted = response(201, &format!(r#"{{"claim":{{}},{members}}}"#)).unwrap();
            assert_eq!(*granted.summary(), Summary::default(), "{members}");
            let denied = response(409, &format!(r#"{{"code":"sold_out",{members}}}"#)).unwrap();
            assert!(denied.summary().is_problem(Code::SoldOut), "{members}");
            assert_eq!(denied.summary().campaign_remaining(), None, "{members}");
        }
    }

    #[test]
    fn a_rejected_edge_is_not_reported_as_the_users_fault() {
        for code in [Code::Unauthenticated, Code::Forbidden] {
            assert_eq!(response(code.status(), &problem(code)), Err(Failure::EdgeRejected(code)));
        }
    }

    #[test]
    fn more_detail_changes_no_other_member() {
        for (body, expected) in [
            (
                r#"{"code":"pass_required","detail":"why","new":{"detail":"x"}}"#,
                r#"{"code":"pass_required","detail":"why; more","new":{"detail":"x"}}"#,
            ),
            (r#"{"detail":"","code":"pass_required"}"#, r#"{"detail":"; more","code":"pass_required"}"#),
            (
                r#"{"code":"pass_required","detail":"\"why\""}"#,
                r#"{"code":"pass_required","detail":"\"why\""}"#,
            ),
            (r#"{"code":"pass_required","detail":7}"#, r#"{"code":"pass_required","detail":7}"#),
            (r#"{"code":"pass_required"}"#, r#"{"code":"pass_required"}"#),
        ] {
            let response = response(403, body).unwrap().with_more_detail("; more");
            assert_eq!(String::from_utf8(response.body).unwrap(), expected);
        }
    }

    #[test]
    fn retry_after_and_the_replay_mark_are_passed_on() {
        let header = |name: &str| match name {
            "retry-after" => Some("3".to_owned()),
            "idempotent-replayed" => Some("true".to_owned()),
            _ => None,
        };
        let passed_on = CoreResponse::new(200, b"{}".to_vec(), header).unwrap().into_response();
        let expected = Response::empty(200)
            .with_body(JSON, b"{}".to_vec())
            .with("retry-after", "3")
            .with("idempotent-replayed", "true");
        assert_eq!(passed_on, expected);
    }
}
