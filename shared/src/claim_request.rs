//! A claim asked for, and what is answered.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

use crate::{CampaignId, Claim, ClaimId, Code, Denial, IdempotencyKey, Problem, Quantity, UserId, Version};

/// A whole number as JSON can carry it between any two programs: at most 2^53 - 1 either way (RFC 7493, 2.2).
/// Only then is it judged as a [`Quantity`]: 0 is a number that no claim may ask for, `"1"` is not a number.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = u32, minimum = 1, default = 1))]
pub struct RequestedQuantity(i64);

impl RequestedQuantity {
    /// What an absent member asks for.
    pub fn one() -> Self {
        Self(1)
    }

    /// The units asked for, or `quantity_out_of_range`.
    ///
    /// # Errors
    /// `quantity_out_of_range` for any number but 1 to 4294967295.
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
            _ => Err(de::Error::custom("must be a whole number within 2^53 - 1")),
        }
    }
}

/// A claim asked for: `POST /internal/v1/claims`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimRequest {
    /// What to claim from.
    pub campaign_id: CampaignId,
    /// Who claims.
    pub user_id: UserId,
    /// How many units.
    pub quantity: Quantity,
    /// What makes a retry the same claim.
    pub idempotency_key: IdempotencyKey,
}

/// [`ClaimRequest`] as it comes in.
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

impl ClaimRequest {
    /// Reads a request body; `invalid_request` names the field that is wrong.
    ///
    /// # Errors
    /// `invalid_request`, with the field that is wrong; `quantity_out_of_range`.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        let ClaimFields { campaign_id, user_id, quantity, idempotency_key } =
            crate::problem::parse_json(body)?;
        Ok(Self { campaign_id, user_id, quantity: quantity.check()?, idempotency_key })
    }

    /// The claim that this request and all its retries are.
    pub fn claim_id(&self) -> ClaimId {
        ClaimId::derive(self.campaign_id.clone(), self.user_id.clone(), &self.idempotency_key)
    }
}

/// The most claims in one batch.
pub const BATCH_MAX: usize = 256;

/// Claims asked for together: `POST /internal/v1/claims/batch`.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimBatch {
    /// 1 to 256 claims, each read for itself.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<ClaimFields>, min_items = 1, max_items = 256))]
    claims: Vec<Box<RawValue>>,
}

impl ClaimBatch {
    /// Reads a request body: its claims in their order, with a problem in the place of one that is malformed.
    ///
    /// # Errors
    /// `invalid_request` when it is no list of 1 to 256 elements.
    pub fn parse(body: &[u8]) -> Result<Vec<Result<ClaimRequest, Problem>>, Problem> {
        let Self { claims } = crate::problem::parse_json(body)?;
        if claims.is_empty() || claims.len() > BATCH_MAX {
            return Err(Problem::invalid("claims", format!("must have 1 to {BATCH_MAX} elements")));
        }
        Ok(claims.iter().map(|claim| ClaimRequest::parse(claim.get().as_bytes())).collect())
    }
}

/// Which try of a claim a request is, as its caller vouches for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The first: the claim has never been sent before, so it cannot have been granted.
    First,
    /// It may be a retry, and its user a winner. Only Redis can tell.
    Unknown,
}

impl Attempt {
    /// The request header that marks a first try.
    pub const HEADER: &str = "claimgate-attempt";
    /// That header's value on a first try.
    pub const FIRST: &str = "1";

    /// As the header's one value says it; every other one, or none, says nothing.
    pub fn of_header(value: Option<&str>) -> Self {
        if value == Some(Self::FIRST) { Self::First } else { Self::Unknown }
    }
}

/// The answer to a claim that stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimReply {
    /// The claim.
    pub claim: Claim,
    /// Units left of `total`; `null` when that is unlimited.
    pub remaining: Option<u32>,
    /// The campaign's version by which it was decided.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub version: Version,
}

/// The answer to a claim's look-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimLookup {
    /// The claim, with `persisted`.
    pub claim: Claim,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Won now.
    Granted(Claim),
    /// Held now, to be confirmed.
    Held(Claim),
    /// The same claim asked for again, as it stands.
    Replayed(Claim),
    /// Refused by a rule; nothing changed.
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
    fn quantities_out_of_range_are_told_from_what_is_no_quantity() {
        let field = || Some("quantity".to_owned());
        for good in ["1", "4294967295"] {
            assert_eq!(parse(good), Ok(good.parse().unwrap()));
        }
        for range in ["0", "-1", "4294967296", "9007199254740991"] {
            assert_eq!(parse(range), Err((422, field())), "{range}");
        }
        for shape in
            ["9007199254740993", "18446744073709551616", "1.0", "-0", "1e400", "\"1\"", "null", "[1]"]
        {
            assert_eq!(parse(shape).unwrap_err().0, 400, "{shape}");
        }
        assert_eq!(parse("\"1\""), Err((400, field())));
    }

    #[test]
    fn a_batch_is_a_list_of_claims_each_read_for_itself() {
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
            ("{}".to_owned(), "body"),
            ("[]".to_owned(), "body"),
            (r#"{"claims":[{]}"#.to_owned(), "claims[0]"),
        ] {
            let problem = ClaimBatch::parse(body.as_bytes()).unwrap_err();
            assert_eq!(problem.code, Code::InvalidRequest, "{body}");
            assert_eq!(problem.extensions.field.as_deref(), Some(field), "{body}");
        }
    }

    #[test]
    fn bodies_that_are_not_the_object_are_refused() {
        let deep = "[".repeat(1000);
        for body in [
            "",
            "{",
            "null",
            "[]",
            r#"["demo","a",1,"k"]"#,
            "NaN",
            "\u{feff}{}",
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

    proptest! {
        #[test]
        fn no_body_makes_the_parser_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ClaimRequest::parse(&body);
        }
    }
}
