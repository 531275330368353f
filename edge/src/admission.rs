//! Admission: what the edge refuses by itself, cheapest check first: the head's shape → the cached campaign → the body's
//! shape. (The token is checked by `auth`, rates by `rate_limit`.) It never grants: a refusal here only saves core a call.
//!
//! Nothing here does I/O or reads a clock.

use claimgate_shared::claim_request::RequestedQuantity;
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
    /// Refuses a body that must not be read.
    ///
    /// # Errors
    /// `unsupported_media_type` when it is not JSON or compressed, `payload_too_large` above [`BODY_BYTES_MAX`],
    /// `invalid_request` without a length.
    pub fn check(&self) -> Result<(), Problem> {
        if !http::is_json(self.content_type.as_deref()) {
            return Err(Problem::new(Code::UnsupportedMediaType, "the body must be application/json"));
        }
        let encoding = self.content_encoding.as_deref().unwrap_or_default().trim();
        if !(encoding.is_empty() || encoding.eq_ignore_ascii_case("identity")) {
            return Err(Problem::new(Code::UnsupportedMediaType, "the body must not be compressed"));
        }
        // A runtime removes this header when there is a `Transfer-Encoding`: with two lengths none is trusted, and a body
        // without a known end is not read.
        match self.content_length.as_deref().map(str::parse::<usize>) {
            Some(Ok(length)) if length <= BODY_BYTES_MAX => Ok(()),
            Some(Ok(_)) => Err(http::body_too_large(BODY_BYTES_MAX)),
            _ => Err(Problem::invalid("body", "needs a Content-Length")),
        }
    }
}

/// The id in a campaign's path.
///
/// # Errors
/// `campaign_not_found`, also for a text that cannot be an id: such a campaign does not exist.
pub fn campaign_id(text: &str) -> Result<CampaignId, Problem> {
    text.parse().map_err(|_| campaign_not_found())
}

/// The refusal of a campaign that core does not know.
pub fn campaign_not_found() -> Problem {
    Problem::new(Code::CampaignNotFound, "there is no such campaign")
}

/// A claim, before its body is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimHead {
    campaign: CampaignId,
    key: Option<IdempotencyKey>,
    attempt: Attempt,
}

impl ClaimHead {
    /// Reads the path's campaign and the headers `Idempotency-Key` and `Claimgate-Attempt`.
    ///
    /// # Errors
    /// `campaign_not_found` or `invalid_request`, when the id or the key is malformed.
    pub fn parse(campaign: &str, key: Option<&str>, attempt: Option<&str>) -> Result<Self, Problem> {
        // A header sent twice arrives joined by ", ", which is not a key either.
        let key: Option<IdempotencyKey> =
            key.map(str::parse).transpose().map_err(|why| Problem::invalid("Idempotency-Key", why))?;
        Ok(Self {
            campaign: campaign_id(campaign)?,
            // A claim without a key gets a new one from the edge, so it cannot be a retry.
            attempt: if key.is_none() { Attempt::First } else { Attempt::of_header(attempt) },
            key,
        })
    }

    /// The campaign to claim from.
    pub fn campaign(&self) -> &CampaignId {
        &self.campaign
    }

    /// Whether this is certainly a first attempt.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Refuses what core would certainly refuse at `now`, by what the cache has of the campaign. A retry always passes: its
    /// claim may have been granted, which only core knows.
    ///
    /// # Errors
    /// The problem that core would answer.
    pub fn check_cached(&self, cached: &Lookup, now: Timestamp) -> Result<(), Problem> {
        if self.attempt == Attempt::Unknown {
            return Ok(());
        }
        match cached {
            Lookup::Miss => Ok(()),
            Lookup::NotFound => Err(campaign_not_found()),
            Lookup::Hit(snapshot) => match denial(snapshot, now) {
                Some(denial) => Err(denial.problem(snapshot.view().version, snapshot.server_time(now))),
                None => Ok(()),
            },
        }
    }

    /// The claim to send to core. `new_key` is used when the browser sent none.
    pub fn into_request(self, user: UserId, quantity: Quantity, new_key: IdempotencyKey) -> ClaimRequest {
        ClaimRequest {
            campaign_id: self.campaign,
            user_id: user,
            quantity,
            idempotency_key: self.key.unwrap_or(new_key),
        }
    }
}

/// The denial that core's rules certainly give at `now`: an admin's pause or end first, then the window, then the units left.
fn denial(snapshot: &Snapshot, now: Timestamp) -> Option<Denial> {
    let view = snapshot.view();
    // What a state unknown to this edge means, only core can tell.
    let State::Known(state) = view.state else { return None };
    let position = snapshot.position(now);
    let ends_at = view.window.ends_at();
    match (state, position) {
        (CampaignState::Paused, _) => Some(Denial::Paused),
        (_, Some(Position::After)) => Some(Denial::Ended { ends_at }),
        (CampaignState::Ended, _) => Some(Denial::Ended { ends_at: None }),
        (_, Some(Position::Before)) => Some(Denial::NotStarted { starts_at: view.window.starts_at() }),
        // A return can free units at any time, so this is trusted for less long than the window.
        (_, Some(Position::Inside)) if snapshot.is_sold_out(now) => Some(Denial::SoldOut { remaining: 0 }),
        _ => None,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimBody {
    #[serde(default = "RequestedQuantity::one")]
    quantity: RequestedQuantity,
}

/// The units that a claim's body requests: `{}` requests 1.
///
/// # Errors
/// `invalid_request` naming the member, or `quantity_out_of_range`.
pub fn parse_claim_body(body: &[u8]) -> Result<Quantity, Problem> {
    let ClaimBody { quantity } = parse_json(body)?;
    quantity.check()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DemoBody {
    user_id: UserId,
}

/// The user for whom a demo token is requested.
///
/// # Errors
/// `invalid_request` naming the member.
pub fn parse_demo_body(body: &[u8]) -> Result<UserId, Problem> {
    parse_json(body).map(|DemoBody { user_id }| user_id)
}

/// The longest value of a query's member that is passed on, in bytes: a cursor has fewer.
const QUERY_VALUE_MAX: usize = 64;

/// What `query` says of a page of claims, for core to judge: `?limit=…&cursor=…`, or nothing.
///
/// # Errors
/// `invalid_request` naming the member that no list has, or whose value cannot be one.
pub fn page_query(query: &str) -> Result<String, Problem> {
    let mut page = String::new();
    for member in query.split('&').filter(|member| !member.is_empty()) {
        let (name, value) = member.split_once('=').unwrap_or((member, ""));
        if !["limit", "cursor"].contains(&name) {
            return Err(Problem::invalid("query", "may have limit and cursor alone"));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if value.len() > QUERY_VALUE_MAX || !value.bytes().all(is_plain) {
            return Err(Problem::invalid(name, "is not one of ours"));
        }
        page.push(if page.is_empty() { '?' } else { '&' });
        page.push_str(member);
    }
    Ok(page)
}

/// The claim id in `text`, if the claim is `user`'s.
///
/// # Errors
/// `claim_not_found`, the same for a malformed id and for another user's.
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

    fn refusal(cached: &Lookup, now_ms: i64) -> Option<Code> {
        let refused = first_try().check_cached(cached, at(now_ms)).err();
        refused.map(|problem| problem.code)
    }

    #[test]
    fn a_page_is_passed_on_as_it_is_named_and_nothing_else() {
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
    fn only_what_cannot_be_a_retry_is_a_first_try() {
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
    fn keys_and_campaigns_that_are_none_are_refused() {
        let long = "k".repeat(65);
        for key in ["", "a b", "a, b", "ключ", "a{}", "a:b", long.as_str()] {
            let refused = ClaimHead::parse("demo", Some(key), None).unwrap_err();
            assert_eq!(refused.code, Code::InvalidRequest, "{key}");
            assert_eq!(refused.extensions.field.as_deref(), Some("Idempotency-Key"));
        }
        for campaign in ["", "a.b", "a%00b", "{}", "*", long.as_str()] {
            let refused = ClaimHead::parse(campaign, None, None).unwrap_err();
            assert_eq!(refused.code, Code::CampaignNotFound, "{campaign}");
        }
    }

    #[test]
    fn a_first_try_is_refused_by_what_is_cached() {
        // The window is 10,000 to 20,000 by core's clock, which read server_ms when ours read 1,000.
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
            assert_eq!(refusal(&cached(state, remaining, server_ms), 1_500), code, "{state:?} {server_ms}");
        }
        assert_eq!(refusal(&Lookup::NotFound, 1_500), Some(Code::CampaignNotFound));
        assert_eq!(refusal(&Lookup::Miss, 1_500), None);
    }

    #[test]
    fn nothing_follows_from_an_unknown_state() {
        for server_ms in [5_000, 15_000, 25_000] {
            let view = View {
                state: State::Unrecognized("lottery".to_owned()),
                ..view(CampaignState::Open, Some(0), server_ms)
            };
            let cached = Lookup::Hit(Rc::new(Snapshot::new(view, at(1_000), at(1_000), 0.0)));
            assert_eq!(refusal(&cached, 1_500), None, "{server_ms}");
        }
    }

    #[test]
    fn the_window_opens_and_closes_between_two_snapshots() {
        let opening = cached(CampaignState::Scheduled, Some(5), 9_500);
        assert_eq!(refusal(&opening, 1_490), Some(Code::NotStarted));
        assert_eq!(refusal(&opening, 1_500), None);
        assert_eq!(refusal(&opening, 1_510), None);
        let closing = cached(CampaignState::Open, Some(5), 19_500);
        assert_eq!(refusal(&closing, 1_490), None);
        assert_eq!(refusal(&closing, 1_510), Some(Code::Ended));
    }

    #[test]
    fn sold_out_is_trusted_for_a_second() {
        let sold_out = cached(CampaignState::SoldOut, Some(0), 15_000);
        assert_eq!(refusal(&sold_out, 2_000), Some(Code::SoldOut));
        assert_eq!(refusal(&sold_out, 2_001), None);
    }

    #[test]
    fn a_retry_is_never_refused_by_what_is_cached() {
        let retry = ClaimHead::parse("demo", Some("k-1"), Some("2")).unwrap();
        for lookup in [
            Lookup::NotFound,
            cached(CampaignState::SoldOut, Some(0), 15_000),
            cached(CampaignState::Ended, Some(0), 25_000),
            cached(CampaignState::Paused, Some(0), 15_000),
        ] {
            assert!(retry.check_cached(&lookup, at(1_500)).is_ok(), "{lookup:?}");
        }
    }

    #[test]
    fn a_refusal_says_what_core_would_say() {
        let scheduled = cached(CampaignState::Scheduled, Some(5), 5_000);
        let refused = first_try().check_cached(&scheduled, at(1_500)).unwrap_err();
        assert_eq!(refused, Denial::NotStarted { starts_at: at(10_000) }.problem(Version::new(3), at(5_500)));
        assert_eq!(refused.retry_after_s, Some(5), "by core's clock");
        let ended = cached(CampaignState::Ended, Some(5), 15_000);
        let refused = first_try().check_cached(&ended, at(1_500)).unwrap_err();
        assert_eq!(refused, Denial::Ended { ends_at: None }.problem(Version::new(3), at(15_500)));
    }

    #[test]
    fn bodies_are_judged_by_their_headers() {
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
    fn a_claims_body_is_an_object_with_at_most_a_quantity() {
        let parse = |body: &str| {
            let parsed = parse_claim_body(body.as_bytes());
            parsed.map(Quantity::get).map_err(|problem| problem.code.status())
        };
        assert_eq!(parse("{}"), Ok(1));
        assert_eq!(parse(r#" {"quantity":2} "#), Ok(2));
        for range in ["0", "-1", "4294967296"] {
            assert_eq!(parse(&format!("{{\"quantity\":{range}}}")), Err(422), "{range}");
        }
        let deep = "[".repeat(1_000);
        for body in [
            "",
            "{",
            "[]",
            "[2]",
            "null",
            "\u{feff}{}",
            deep.as_str(),
            r#"{"quantity":1,"quantity":1}"#,
            r#"{"quantity":null}"#,
            r#"{"quantity":"1"}"#,
            r#"{"quantity":1.0}"#,
            r#"{"user_id":"mallory"}"#,
        ] {
            assert_eq!(parse(body), Err(400), "{body}");
        }
        let refused = parse_claim_body(br#"{"quantity":"1"}"#).unwrap_err();
        assert_eq!(refused.extensions.field.as_deref(), Some("quantity"));
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
        fn no_head_makes_the_parser_panic(campaign in any::<String>(), key in any::<Option<String>>(), attempt in any::<Option<String>>()) {
            let _ = ClaimHead::parse(&campaign, key.as_deref(), attempt.as_deref());
        }

        #[test]
        fn only_the_contracts_keys_pass(key in any::<String>()) {
            let allowed = (1..=64).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
            prop_assert_eq!(ClaimHead::parse("demo", Some(&key), None).is_ok(), allowed);
        }

        #[test]
        fn no_body_makes_the_parser_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_claim_body(&body);
            let _ = parse_demo_body(&body);
        }

        #[test]
        fn every_quantity_that_fits_is_read(quantity in 1..=u32::MAX) {
            let body = format!("{{\"quantity\":{quantity}}}");
            prop_assert_eq!(parse_claim_body(body.as_bytes()).map(Quantity::get), Ok(quantity));
        }

        #[test]
        fn a_refusal_never_contradicts_the_window(server_ms in 0_i64..30_000, later_ms in 0_i64..2_000) {
            let open = cached(CampaignState::Open, None, server_ms);
            let server_now = server_ms + later_ms;
            match refusal(&open, 1_000 + later_ms) {
                Some(Code::NotStarted) => prop_assert!(server_now < 10_000),
                Some(Code::Ended) => prop_assert!(server_now >= 20_000),
                refused => prop_assert_eq!(refused, None),
            }
        }
    }
}
