//! Requests to claim, and their responses.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

use crate::{CampaignId, Claim, ClaimId, Code, Denial, IdempotencyKey, Problem, Quantity, UserId, Version};

/// A quantity before its range is checked: a whole number of at most 2^53 - 1 either way, as RFC 7493 (2.2)
/// allows. [`Quantity`] rejects an out-of-range number such as 0 with 422; parsing rejects `"1"` with 400.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(
    description = "Units requested: 1 to 4294967295.",
    value_type = u32,
    minimum = 1,
    default = 1
))]
pub struct RequestedQuantity(i64);

impl RequestedQuantity {
    /// Returns the default for an absent member.
    pub fn one() -> Self {
        Self(1)
    }

    /// Checks the range: `quantity_out_of_range` for any number outside 1 to 4294967295.
    pub fn check(self) -> Result<Quantity, Problem> {
        u32::try_from(self.0).and_then(Quantity::try_from).map_err(|_| {
            let mut problem = Problem::new(Code::QuantityOutOfRange, "quantity must be from 1 to 4294967295");
            problem.extensions.field = Some("quantity".to_owned());
            problem
        })
    }
}

impl<'de> Deserialize<'de> for RequestedQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const INTEROPERABLE_MAX: u64 = (1 << 53) - 1;
        match i64::deserialize(deserializer)? {
            number if number.unsigned_abs() <= INTEROPERABLE_MAX => Ok(Self(number)),
            _ => Err(de::Error::custom("must be a whole number of at most 2^53 - 1, positive or negative")),
        }
    }
}

/// A request to claim: `POST /internal/v1/claims`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimRequest {
    /// The campaign to claim from.
    pub campaign_id: CampaignId,
    /// The user who claims.
    pub user_id: UserId,
    /// Units requested.
    pub quantity: Quantity,
    /// Identifies the claim: a retry sends the same key.
    pub idempotency_key: IdempotencyKey,
}

/// [`ClaimRequest`] as received.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = ClaimRequest))]
#[serde(deny_unknown_fields)]
pub struct ClaimFields {
    campaign_id: CampaignId,
    user_id: UserId,
    #[serde(default = "RequestedQuantity::one")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    quantity: RequestedQuantity,
    idempotency_key: IdempotencyKey,
}

/// A request to claim at the edge, for the token's user: `POST /v1/campaigns/{id}/claims`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = OwnClaimRequest))]
#[serde(deny_unknown_fields)]
pub struct OwnClaimFields {
    #[serde(default = "RequestedQuantity::one")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    quantity: RequestedQuantity,
}

impl OwnClaimFields {
    /// Parses a request body and returns the units it requests: `{}` requests 1.
    ///
    /// # Errors
    /// `invalid_request`, naming the invalid field; `quantity_out_of_range`.
    pub fn parse(body: &[u8]) -> Result<Quantity, Problem> {
        let Self { quantity } = crate::problem::parse_json(body)?;
        quantity.check()
    }
}

impl ClaimRequest {
    /// Parses a request body.
    ///
    /// # Errors
    /// `invalid_request`, naming the invalid field; `quantity_out_of_range`.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let ClaimFields { campaign_id, user_id, quantity, idempotency_key } =
            crate::problem::parse_json(body)?;
        Ok(Self { campaign_id, user_id, quantity: quantity.check()?, idempotency_key })
    }

    /// Returns the id of the claim, which this request and all its retries share.
    pub fn claim_id(&self) -> ClaimId {
        ClaimId::derive(self.campaign_id.clone(), self.user_id.clone(), &self.idempotency_key)
    }
}

/// Maximum number of claims in one batch.
pub const BATCH_MAX: usize = 256;

/// A request for several claims: `POST /internal/v1/claims/batch`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimBatch {
    /// 1 to 256 claims, each parsed separately.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<ClaimFields>, min_items = 1, max_items = 256))]
    claims: Vec<Box<RawValue>>,
}

impl ClaimBatch {
    /// Parses a request body. Returns its claims in order, with a problem instead of each malformed claim.
    ///
    /// # Errors
    /// `invalid_request` unless `claims` is a list of 1 to 256 elements.
    pub fn parse(body: &[u8]) -> Result<Vec<Result<ClaimRequest, Problem>>, Problem> {
        let Self { claims } = crate::problem::parse_json(body)?;
        if claims.is_empty() || claims.len() > BATCH_MAX {
            return Err(Problem::invalid("claims", format!("must have 1 to {BATCH_MAX} elements")));
        }
        Ok(claims.iter().map(|claim| ClaimRequest::parse(claim.get().as_bytes())).collect())
    }
}

/// Whether a request is a claim's first try, as stated by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The first try: the claim was never sent before, so it cannot have been granted.
    First,
    /// Possibly a retry of a claim that was granted. Only Redis can decide.
    Unknown,
}

impl Attempt {
    /// The request header that marks a first try.
    pub const HEADER: &str = "claimgate-attempt";
    /// The header's value on a first try.
    pub const FIRST: &str = "1";

    /// Returns `First` if the header is exactly `1`, otherwise `Unknown`.
    pub fn from_header(value: Option<&str>) -> Self {
        if value == Some(Self::FIRST) { Self::First } else { Self::Unknown }
    }
}

/// The response to a claim that was granted or held, now or earlier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimReply {
    /// The claim.
    pub claim: Claim,
    /// Units left of `total`; `null` if the total is unlimited.
    pub remaining: Option<u32>,
    /// The version of the campaign's rules at the decision.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub version: Version,
}

/// The response to a claim lookup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimLookup {
    /// The claim, including `persisted`.
    pub claim: Claim,
}

/// The decision on a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Granted now.
    Granted(Claim),
    /// Held now, for confirmation.
    Held(Claim),
    /// Decided earlier under the same key; the claim in its current state.
    Replayed(Claim),
    /// Denied by a rule; nothing changed.
    Denied(Denial),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(quantity: &str) -> Result<u32, (u16, Option<String>)> {
        let body =
            format!(r#"{{"campaign_id":"demo","user_id":"a","idempotency_key":"k","quantity":{quantity}}}"#);
        ClaimRequest::parse(body.as_bytes())
            .map(|request| request.quantity.get())
            .map_err(|problem| (problem.code.status(), problem.extensions.field))
    }

    #[test]
    fn out_of_range_quantities_are_422_and_malformed_ones_400() {
        let field = || Some("quantity".to_owned());
        for (good, quantity) in [("1", 1), ("1.0", 1), ("1e1", 10), ("4294967295", u32::MAX)] {
            assert_eq!(parse(good), Ok(quantity));
        }
        for range in ["0", "-1", "4294967296", "9007199254740991"] {
            assert_eq!(parse(range), Err((422, field())), "{range}");
        }
        for shape in
            ["9007199254740993", "18446744073709551616", "1.5", "-0", "1e400", "\"1\"", "null", "[1]"]
        {
            assert_eq!(parse(shape).unwrap_err().0, 400, "{shape}");
        }
        assert_eq!(parse("\"1\""), Err((400, field())));
    }

    #[test]
    fn each_claim_of_a_batch_is_parsed_separately() {
        let good = r#"{"campaign_id":"demo","user_id":"a","idempotency_key":"k"}"#;
        let body = format!(r#"{{"claims":[{good},{{"user_id":1}},7,{good}]}}"#);
        let claims = ClaimBatch::parse(body.as_bytes()).unwrap();
        let codes: Vec<_> =
            claims.iter().map(|claim| claim.as_ref().err().map(|problem| problem.code)).collect();
        assert_eq!(codes, [None, Some(Code::InvalidRequest), Some(Code::InvalidRequest), None]);
        let many = |count| format!(r#"{{"claims":[{}]}}"#, vec![good; count].join(","));
        assert_eq!(ClaimBatch::parse(many(256).as_bytes()).unwrap().len(), 256);
        for (body, field) in [
            (many(0), "claims"),
            (many(257), "claims"),
            (r#"{"claims":{}}"#.to_owned(), "claims"),
            (format!(r#"{{"claims":[{good}],"more":1}}"#), "more"),
            ("{}".to_owned(), "claims"),
            ("[]".to_owned(), "body"),
            (r#"{"claims":[{]}"#.to_owned(), "body"),
        ] {
            let problem = ClaimBatch::parse(body.as_bytes()).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{body}");
            assert_eq!(problem.extensions.field.as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn bodies_other_than_the_expected_object_are_rejected() {
        let deep = "[".repeat(1000);
        for body in [
            "",
            "{",
            "null",
            "[]",
            r#"["demo","a",1,"k"]"#,
            "NaN",
            deep.as_str(),
            r#"{"campaign_id":"demo","user_id":"a"}"#,
            r#"{"campaign_id":"demo","user_id":"a","idempotency_key":"k","extra":1}"#,
            r#"{"campaign_id":"demo","user_id":"a","user_id":"b","idempotency_key":"k"}"#,
            r#"{"campaign_id":"demo","user_id":"\ud800","idempotency_key":"k"}"#,
            r#"{"campaign_id":"demo","user_id":"a","idempotency_key":"k"} {}"#,
        ] {
            assert_eq!(
                ClaimRequest::parse(body.as_bytes()).unwrap_err().code,
                Code::InvalidRequest,
                "{body}"
            );
        }
    }

    #[test]
    fn a_claims_body_may_only_contain_the_quantity() {
        let parse = |body: &str| {
            let parsed = OwnClaimFields::parse(body.as_bytes());
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
            deep.as_str(),
            r#"{"quantity":1,"quantity":1}"#,
            r#"{"quantity":null}"#,
            r#"{"quantity":"1"}"#,
            r#"{"quantity":1.5}"#,
            r#"{"user_id":"mallory"}"#,
        ] {
            assert_eq!(parse(body), Err(400), "{body}");
        }
        let refused = OwnClaimFields::parse(br#"{"quantity":"1"}"#).unwrap_err();
        assert_eq!(refused.extensions.field.as_deref(), Some("quantity"));
    }

    proptest! {
        #[test]
        fn parsing_a_body_never_panics(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ClaimRequest::parse(&body);
            let _ = OwnClaimFields::parse(&body);
        }

        #[test]
        fn every_quantity_in_range_is_parsed(quantity in 1..=u32::MAX) {
            let body = format!("{{\"quantity\":{quantity}}}");
            prop_assert_eq!(OwnClaimFields::parse(body.as_bytes()).map(Quantity::get), Ok(quantity));
        }
    }
}
