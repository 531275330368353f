//! Admission: the edge's own checks, cheapest first: the head's format, the cached campaign, the body's
//! format. (`auth` checks the token, `rate_limit` the rates.) Admission never grants; a rejection only saves
//! core a call.
//!
//! Nothing here does I/O or reads a clock.

use claimgate_shared::http::{self, BODY_BYTES_MAX};
use claimgate_shared::problem::parse_json;
use claimgate_shared::window::Position;
use claimgate_shared::{
    Attempt, CampaignId, CampaignState, ClaimId, ClaimRequest, Code, Denial, IdempotencyKey, Problem,
    Quantity, Timestamp, UserId,
};
use serde::Deserialize;

use crate::campaign_cache::snapshot::{Snapshot, State};
use crate::campaign_cache::store::Lookup;

/// The headers that describe a body.
#[derive(Debug, Clone, Default)]
pub struct BodyHeaders {
    /// `Content-Type`
    pub content_type: Option<String>,
    /// `Content-Encoding`
    pub content_encoding: Option<String>,
    /// `Content-Length`
    pub content_length: Option<String>,
}

impl BodyHeaders {
    /// Rejects a body that must not be read.
    ///
    /// # Errors
    /// `unsupported_media_type` if it is compressed or not JSON, `payload_too_large` above
    /// [`BODY_BYTES_MAX`], `invalid_request` without a length.
    pub fn check(&self) -> Result<(), Problem> {
        if !http::is_json(self.content_type.as_deref()) {
            return Err(Problem::new(Code::UnsupportedMediaType, "the body must be application/json"));
        }
        let encoding = self.content_encoding.as_deref().unwrap_or_default().trim();
        if !(encoding.is_empty() || encoding.eq_ignore_ascii_case("identity")) {
            return Err(Problem::new(Code::UnsupportedMediaType, "the body must not be compressed"));
        }
        // The runtime removes this header if there is a `Transfer-Encoding`, since two lengths may disagree.
        // A body of unknown length is not read.
        match self.content_length.as_deref().map(str::parse::<usize>) {
            Some(Ok(length)) if length <= BODY_BYTES_MAX => Ok(()),
            Some(Ok(_)) => Err(http::body_too_large(BODY_BYTES_MAX)),
            _ => Err(Problem::invalid("body", "requires a Content-Length header")),
        }
    }
}

/// Parses the campaign id in a path.
///
/// # Errors
/// `campaign_not_found` for a malformed id: no campaign has it.
pub fn campaign_id(text: &str) -> Result<CampaignId, Problem> {
    text.parse().map_err(|_| campaign_not_found())
}

/// Returns the problem for a campaign that does not exist.
pub fn campaign_not_found() -> Problem {
    Problem::new(Code::CampaignNotFound, "there is no such campaign")
}

/// A claim request whose body has not been read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimHead {
    campaign: CampaignId,
    key: Option<IdempotencyKey>,
    attempt: Attempt,
}

impl ClaimHead {
    /// Parses the campaign in the path and the headers `Idempotency-Key` and `Claimgate-Attempt`.
    ///
    /// # Errors
    /// `campaign_not_found` if the id is malformed, `invalid_request` if the key is.
    pub fn parse(campaign: &str, key: Option<&str>, attempt: Option<&str>) -> Result<Self, Problem> {
        // A header sent twice arrives joined by ", ", which no key contains.
        let key: Option<IdempotencyKey> =
            key.map(str::parse).transpose().map_err(|why| Problem::invalid("Idempotency-Key", why))?;
        Ok(Self {
            campaign: campaign_id(campaign)?,
            // The edge assigns a new key to a claim without one, so it cannot be a retry.
            attempt: if key.is_none() { Attempt::First } else { Attempt::from_header(attempt) },
            key,
        })
    }

    /// Returns the campaign to claim from.
    pub fn campaign(&self) -> &CampaignId {
        &self.campaign
    }

    /// Returns whether this is known to be a first try.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Rejects a claim that core is certain to deny at `now`, judging by the cached campaign. A retry always
    /// passes: its claim may have been granted, and only core knows. `has_pass` says whether a pass came with
    /// the claim that is valid or not verified yet.
    ///
    /// # Errors
    /// The problem that core would return.
    pub fn check_cached(&self, cached: &Lookup, has_pass: bool, now: Timestamp) -> Result<(), Problem> {
        if self.attempt == Attempt::Unknown {
            return Ok(());
        }
        match cached {
            Lookup::Miss => Ok(()),
            Lookup::NotFound => Err(campaign_not_found()),
            Lookup::Hit(snapshot) => match denial(snapshot, has_pass, now) {
                Some(denial) => Err(denial.problem(snapshot.view().version, snapshot.server_time(now))),
                None => Ok(()),
            },
        }
    }

    /// Returns the claim to send to core. Calls `new_key` if the browser sent no key.
    ///
    /// # Errors
    /// The error of `new_key`.
    pub fn into_request(
        self,
        user: UserId,
        quantity: Quantity,
        new_key: impl FnOnce() -> Result<IdempotencyKey, Problem>,
    ) -> Result<ClaimRequest, Problem> {
        Ok(ClaimRequest {
            campaign_id: self.campaign,
            user_id: user,
            quantity,
            idempotency_key: self.key.map_or_else(new_key, Ok)?,
        })
    }
}

/// Returns the denial that is certain at `now`: paused or ended by an admin first, then the window, the pass, and
/// stock.
fn denial(snapshot: &Snapshot, has_pass: bool, now: Timestamp) -> Option<Denial> {
    let view = snapshot.view();
    // Only core can interpret a state that this edge does not recognize.
    let State::Known(state) = view.state else { return None };
    let position = snapshot.position(now);
    let ends_at = view.window.ends_at();
    match (state, position) {
        (CampaignState::Paused, _) => Some(Denial::Paused),
        (_, Some(Position::After)) => Some(Denial::Ended { ends_at }),
        (CampaignState::Ended, _) => Some(Denial::Ended { ends_at: None }),
        (_, Some(Position::Before)) => Some(Denial::NotStarted { starts_at: view.window.starts_at() }),
        (_, Some(Position::Inside)) => match snapshot.required_pass(now) {
            Some(rule) if !has_pass => Some(Denial::PassRequired { until: rule.until() }),
            // A return can free units at any time, so "sold out" is trusted for a shorter time than the window.
            _ => snapshot.is_sold_out(now).then_some(Denial::SoldOut { remaining: 0 }),
        },
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DemoBody {
    user_id: UserId,
}

/// Parses the body of a demo token request and returns the user.
///
/// # Errors
/// `invalid_request`, naming the invalid member.
pub fn parse_demo_body(body: &[u8]) -> Result<UserId, Problem> {
    parse_json(body).map(|DemoBody { user_id }| user_id)
}

/// Maximum length of a query parameter's value, in bytes. Cursors are shorter.
const QUERY_VALUE_MAX: usize = 64;

/// Returns the paging parameters in `query`, to forward to core: `?limit=…&cursor=…`, or nothing.
///
/// # Errors
/// `invalid_request` for any other parameter, or for a malformed value.
pub fn page_query(query: &str) -> Result<String, Problem> {
    let mut page = String::new();
    for member in query.split('&').filter(|member| !member.is_empty()) {
        let (name, value) = member.split_once('=').unwrap_or((member, ""));
        if !["limit", "cursor"].contains(&name) {
            return Err(Problem::invalid("query", "only limit and cursor are allowed"));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if value.len() > QUERY_VALUE_MAX || !value.bytes().all(is_plain) {
            return Err(Problem::invalid(name, "is malformed"));
        }
        page.push(if page.is_empty() { '?' } else { '&' });
        page.push_str(member);
    }
    Ok(page)
}

/// Parses a claim id and checks that the claim is `user`'s.
///
/// # Errors
/// `claim_not_found` for a malformed id and for another user's claim, so that the two look the same.
pub fn own_claim(text: &str, user: &UserId) -> Result<ClaimId, Problem> {
    text.parse()
        .ok()
        .filter(|id: &ClaimId| id.user == *user)
        .ok_or_else(|| Problem::new(Code::ClaimNotFound, "there is no such claim"))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use claimgate_shared::Version;
    use serde_json::{Value, json};

    use super::*;
    use crate::campaign_cache::snapshot::View;
    use crate::campaign_cache::snapshot::tests::{at, view};

    fn cached(state: CampaignState, remaining: Option<u32>, server_ms: i64) -> Lookup {
        let view = view(state, remaining, server_ms);
        Lookup::Hit(Rc::new(Snapshot::new(view, at(1_000), at(1_000), 0.0)))
    }

    fn first_try() -> ClaimHead {
        ClaimHead::parse("demo", None, None).unwrap()
    }

    fn rejection(cached: &Lookup, now_ms: i64) -> Option<Code> {
        let rejected = first_try().check_cached(cached, true, at(now_ms)).err();
        rejected.map(|problem| problem.code)
    }

    /// Returns a snapshot with the member `pass`, received at 1,000 ms when core's clock read `server_ms`.
    fn with_pass_rule(pass: Value, state: CampaignState, remaining: Option<u32>, server_ms: i64) -> Lookup {
        let mut view = serde_json::to_value(view(state, remaining, server_ms)).unwrap();
        view["pass"] = pass;
        let view = serde_json::from_slice(view.to_string().as_bytes()).unwrap();
        Lookup::Hit(Rc::new(Snapshot::new(view, at(1_000), at(1_000), 0.0)))
    }

    #[test]
    fn only_paging_parameters_are_forwarded() {
        for (query, page) in [
            ("", ""),
            ("&", ""),
            ("limit=5", "?limit=5"),
            ("cursor=35.aHSIRPhRB6fDKajWWhFL-_&&limit=x", "?cursor=35.aHSIRPhRB6fDKajWWhFL-_&limit=x"),
            ("limit", "?limit"),
        ] {
            assert_eq!(page_query(query).unwrap(), page, "{query}");
        }
        let long = format!("cursor={}", "a".repeat(65));
        for (query, field) in [
            ("user_id=bob", "query"),
            ("limit=5&x", "query"),
            ("limit=%35", "limit"),
            ("cursor=a/../b", "cursor"),
            ("cursor=a#b", "cursor"),
            ("cursor=a b", "cursor"),
            (long.as_str(), "cursor"),
        ] {
            let problem = page_query(query).unwrap_err();
            assert_eq!(
                (problem.code, problem.extensions.field.as_deref()),
                (Code::InvalidRequest, Some(field))
            );
        }
    }

    #[test]
    fn a_request_that_may_be_a_retry_is_not_a_first_try() {
        for (key, mark, attempt) in [
            (None, None, Attempt::First),
            (None, Some("2"), Attempt::First),
            (Some("k-1"), Some("1"), Attempt::First),
            (Some("k-1"), None, Attempt::Unknown),
            (Some("k-1"), Some("2"), Attempt::Unknown),
            (Some("k-1"), Some("1, 1"), Attempt::Unknown),
            (Some("k-1"), Some("01"), Attempt::Unknown),
        ] {
            let head = ClaimHead::parse("demo", key, mark).unwrap();
            assert_eq!(head.attempt(), attempt, "{key:?} {mark:?}");
        }
    }

    #[test]
    fn malformed_keys_and_campaign_ids_are_rejected() {
        let long = "k".repeat(65);
        for key in ["", "a b", "a, b", "ключ", "a{}", "a:b", long.as_str()] {
            let problem = ClaimHead::parse("demo", Some(key), None).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{key}");
            assert_eq!(problem.extensions.field.as_deref(), Some("Idempotency-Key"));
        }
        for campaign in ["", "a.b", "a%00b", "{}", "*", long.as_str()] {
            let problem = ClaimHead::parse(campaign, None, None).unwrap_err();
            assert_eq!(problem.code, Code::CampaignNotFound, "{campaign}");
        }
    }

    #[test]
    fn a_first_try_is_rejected_from_the_cache() {
        // The window is 10,000 to 20,000 by core's clock, which read `server_ms` when the edge's read 1,000.
        use CampaignState::{Ended, Open, Paused, Scheduled, SoldOut};
        for (state, remaining, server_ms, code) in [
            (Scheduled, Some(5), 5_000, Some(Code::NotStarted)),
            (Scheduled, Some(0), 5_000, Some(Code::NotStarted)),
            (Paused, Some(5), 5_000, Some(Code::Paused)),
            (Ended, Some(5), 5_000, Some(Code::Ended)),
            (Ended, Some(5), 25_000, Some(Code::Ended)),
            (Open, Some(5), 15_000, None),
            (Open, None, 15_000, None),
            (SoldOut, Some(0), 15_000, Some(Code::SoldOut)),
            (SoldOut, Some(0), 25_000, Some(Code::Ended)),
        ] {
            assert_eq!(rejection(&cached(state, remaining, server_ms), 1_500), code, "{state:?} {server_ms}");
        }
        assert_eq!(rejection(&Lookup::NotFound, 1_500), Some(Code::CampaignNotFound));
        assert_eq!(rejection(&Lookup::Miss, 1_500), None);
    }

    #[test]
    fn a_missing_pass_rejects_after_the_window_and_before_stock() {
        use CampaignState::{Ended, Open, Paused, Scheduled, SoldOut};
        let always = json!({"required": "always"});
        for (state, remaining, server_ms, without, with) in [
            (Open, Some(5), 15_000, Some(Code::PassRequired), None),
            (Open, None, 15_000, Some(Code::PassRequired), None),
            (SoldOut, Some(0), 15_000, Some(Code::PassRequired), Some(Code::SoldOut)),
            (Paused, Some(5), 15_000, Some(Code::Paused), Some(Code::Paused)),
            (Ended, Some(5), 15_000, Some(Code::Ended), Some(Code::Ended)),
            (Scheduled, Some(5), 5_000, Some(Code::NotStarted), Some(Code::NotStarted)),
            (Open, Some(5), 25_000, Some(Code::Ended), Some(Code::Ended)),
        ] {
            let cached = with_pass_rule(always.clone(), state, remaining, server_ms);
            for (has_pass, code) in [(false, without), (true, with)] {
                let rejected = first_try().check_cached(&cached, has_pass, at(1_500)).err();
                assert_eq!(rejected.map(|problem| problem.code), code, "{state:?} {server_ms} {has_pass}");
            }
        }
        let retry = ClaimHead::parse("demo", Some("k-1"), None).unwrap();
        let cached = with_pass_rule(always, Open, Some(5), 15_000);
        assert!(retry.check_cached(&cached, false, at(1_500)).is_ok());
    }

    #[test]
    fn a_presale_ends_by_cores_clock() {
        let until = json!({"required": "until", "until": at(15_500)});
        let cached = with_pass_rule(until, CampaignState::Open, Some(5), 15_000);
        let rejected = |now_ms| first_try().check_cached(&cached, false, at(now_ms)).err();
        let expected = Denial::PassRequired { until: Some(at(15_500)) }.problem(Version::new(3), at(15_498));
        assert_eq!(rejected(1_498), Some(expected));
        assert_eq!(rejected(1_499), None, "too close to be certain");
        assert_eq!(rejected(1_500), None);
    }

    #[test]
    fn an_unknown_or_missing_pass_rule_never_causes_a_rejection() {
        let cached = |pass: Value| with_pass_rule(pass, CampaignState::Open, Some(5), 15_000);
        let old_core = super::tests::cached(CampaignState::Open, Some(5), 15_000);
        for (cached, may_need_pass) in [
            (cached(Value::Null), false),
            (old_core, false),
            (cached(json!({"required": "by lottery"})), true),
            (cached(json!({"required": "until", "until": at(15_000), "from": at(14_000)})), true),
            (Lookup::Miss, true),
        ] {
            assert!(first_try().check_cached(&cached, false, at(1_500)).is_ok(), "{cached:?}");
            assert_eq!(cached.may_need_pass(), may_need_pass, "{cached:?}");
        }
        assert!(!Lookup::NotFound.may_need_pass());
    }

    #[test]
    fn an_unknown_state_never_causes_a_rejection() {
        for server_ms in [5_000, 15_000, 25_000] {
            let view = View {
                state: State::Unrecognized("lottery".to_owned()),
                ..view(CampaignState::Open, Some(0), server_ms)
            };
            let cached = Lookup::Hit(Rc::new(Snapshot::new(view, at(1_000), at(1_000), 0.0)));
            assert_eq!(rejection(&cached, 1_500), None, "{server_ms}");
        }
    }

    #[test]
    fn the_window_opens_and_closes_between_two_snapshots() {
        let opening = cached(CampaignState::Scheduled, Some(5), 9_500);
        assert_eq!(rejection(&opening, 1_490), Some(Code::NotStarted));
        assert_eq!(rejection(&opening, 1_500), None);
        assert_eq!(rejection(&opening, 1_510), None);
        let closing = cached(CampaignState::Open, Some(5), 19_500);
        assert_eq!(rejection(&closing, 1_490), None);
        assert_eq!(rejection(&closing, 1_510), Some(Code::Ended));
    }

    #[test]
    fn sold_out_is_trusted_for_a_second() {
        let sold_out = cached(CampaignState::SoldOut, Some(0), 15_000);
        assert_eq!(rejection(&sold_out, 2_000), Some(Code::SoldOut));
        assert_eq!(rejection(&sold_out, 2_001), None);
    }

    #[test]
    fn a_retry_is_never_rejected_from_the_edges_cache() {
        let retry = ClaimHead::parse("demo", Some("k-1"), Some("2")).unwrap();
        for lookup in [
            Lookup::NotFound,
            cached(CampaignState::SoldOut, Some(0), 15_000),
            cached(CampaignState::Ended, Some(0), 25_000),
            cached(CampaignState::Paused, Some(0), 15_000),
        ] {
            assert!(retry.check_cached(&lookup, false, at(1_500)).is_ok(), "{lookup:?}");
        }
    }

    #[test]
    fn a_rejection_is_the_problem_that_core_would_return() {
        let scheduled = cached(CampaignState::Scheduled, Some(5), 5_000);
        let problem = first_try().check_cached(&scheduled, true, at(1_500)).unwrap_err();
        assert_eq!(problem, Denial::NotStarted { starts_at: at(10_000) }.problem(Version::new(3), at(5_500)));
        assert_eq!(problem.retry_after_s, Some(5), "by core's clock");
        let ended = cached(CampaignState::Ended, Some(5), 15_000);
        let problem = first_try().check_cached(&ended, true, at(1_500)).unwrap_err();
        assert_eq!(problem, Denial::Ended { ends_at: None }.problem(Version::new(3), at(15_500)));
    }

    #[test]
    fn a_body_is_accepted_or_rejected_by_its_headers() {
        let check = |content_type: &str, encoding: Option<&str>, length: Option<&str>| {
            let headers = BodyHeaders {
                content_type: Some(content_type.to_owned()),
                content_encoding: encoding.map(str::to_owned),
                content_length: length.map(str::to_owned),
            };
            headers.check().map_err(|problem| problem.code.status())
        };
        assert_eq!(check("application/json", None, Some("0")), Ok(()));
        assert_eq!(check("Application/JSON; charset=utf-8", Some("identity"), Some("4096")), Ok(()));
        assert_eq!(check("application/json", None, Some("4097")), Err(413));
        assert_eq!(check("application/json", Some("gzip"), Some("2")), Err(415));
        for length in [None, Some(""), Some("-1"), Some("2, 2"), Some("18446744073709551616")] {
            assert_eq!(check("application/json", None, length), Err(400), "{length:?}");
        }
        for media in ["", "text/plain", "application/json, text/plain", "application/jsonp"] {
            assert_eq!(check(media, None, None), Err(415), "{media}");
        }
        assert_eq!(BodyHeaders::default().check().unwrap_err().code, Code::UnsupportedMediaType);
    }

    #[test]
    fn a_claim_is_shown_to_its_user_only() {
        let alice: UserId = "alice".parse().unwrap();
        let id = ClaimId::derive("demo".parse().unwrap(), alice.clone(), &"k1".parse().unwrap());
        assert_eq!(own_claim(&id.to_string(), &alice), Ok(id.clone()));
        let other = own_claim(&id.to_string(), &"bob".parse().unwrap()).unwrap_err();
        assert_eq!(other, own_claim("nonsense", &alice).unwrap_err());
    }

    proptest! {
        #[test]
        fn parsing_a_head_never_panics(campaign in any::<String>(), key in any::<Option<String>>(), attempt in any::<Option<String>>()) {
            let _ = ClaimHead::parse(&campaign, key.as_deref(), attempt.as_deref());
        }

        #[test]
        fn only_well_formed_keys_are_accepted(key in any::<String>()) {
            let allowed = (1..=64).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
            prop_assert_eq!(ClaimHead::parse("demo", Some(&key), None).is_ok(), allowed);
        }

        #[test]
        fn parsing_a_body_never_panics(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_demo_body(&body);
        }

        #[test]
        fn a_rejection_never_contradicts_the_window(server_ms in 0_i64..30_000, later_ms in 0_i64..2_000) {
            let open = cached(CampaignState::Open, None, server_ms);
            let server_now = server_ms + later_ms;
            match rejection(&open, 1_000 + later_ms) {
                Some(Code::NotStarted) => prop_assert!(server_now < 10_000),
                Some(Code::Ended) => prop_assert!(server_now >= 20_000),
                other => prop_assert_eq!(other, None),
            }
        }
    }
}
