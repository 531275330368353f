//! What goes wrong, as `application/problem+json` (RFC 9457).

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Claim, Timestamp, Version};

/// The media type of a [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

macro_rules! codes {
    ($($code:ident = $snake:literal, $status:literal, $title:literal;)*) => {
        /// What went wrong, for programs to switch on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum Code {
            $(#[doc = $title] #[serde(rename = $snake)] $code,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// As in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => $snake,)* }
            }

            /// The HTTP status that goes with it.
            pub fn status(self) -> u16 {
                match self { $(Self::$code => $status,)* }
            }

            /// In words, the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }
        }
    };
}

codes! {
    NotStarted = "not_started", 403, "Not started";
    Ended = "ended", 403, "Ended";
    Paused = "paused", 403, "Paused";
    SoldOut = "sold_out", 409, "Sold out";
    UserLimitReached = "user_limit_reached", 409, "User limit reached";
    UserDailyLimitReached = "user_daily_limit_reached", 409, "Daily limit reached";
    ClaimExpired = "claim_expired", 409, "Claim expired";
    ClaimReturned = "claim_returned", 409, "Claim returned";
    ClaimRevoked = "claim_revoked", 409, "Claim revoked";
    CampaignExists = "campaign_exists", 409, "Campaign exists";
    VersionConflict = "version_conflict", 409, "Version conflict";
    CampaignEnded = "campaign_ended", 409, "Campaign ended";
    CampaignOpen = "campaign_open", 409, "Campaign open";
    ImportUnfinished = "import_unfinished", 409, "Import unfinished";
    RateLimited = "rate_limited", 429, "Too many requests";
    Unauthenticated = "unauthenticated", 401, "Not authenticated";
    Forbidden = "forbidden", 403, "Not allowed";
    CampaignNotFound = "campaign_not_found", 404, "No such campaign";
    ClaimNotFound = "claim_not_found", 404, "No such claim";
    WebhookNotFound = "webhook_not_found", 404, "No such webhook";
    NotFound = "not_found", 404, "Not found";
    MethodNotAllowed = "method_not_allowed", 405, "Method not allowed";
    RequestTimeout = "request_timeout", 408, "Request took too long";
    CursorInvalid = "cursor_invalid", 410, "Cursor invalid";
    InvalidRequest = "invalid_request", 400, "Invalid request";
    QuantityOutOfRange = "quantity_out_of_range", 422, "Quantity out of range";
    IdempotencyKeyReused = "idempotency_key_reused", 422, "Idempotency key reused";
    PayloadTooLarge = "payload_too_large", 413, "Payload too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "Unsupported media type";
    CampaignNotReady = "campaign_not_ready", 503, "Campaign not ready";
    Overloaded = "overloaded", 503, "Overloaded";
    Unavailable = "unavailable", 503, "Unavailable";
}

impl Code {
    /// The problem type's URI reference: `/problems/sold-out`.
    pub fn type_uri(self) -> String {
        format!("/problems/{}", self.as_str().replace('_', "-"))
    }

    /// Seconds after which asking again makes sense, where that is the same for every occurrence.
    fn retry_after_s(self) -> Option<u32> {
        matches!(self, Self::RateLimited | Self::CampaignNotReady | Self::Overloaded | Self::Unavailable)
            .then_some(1)
    }
}

/// Which limit refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// All users together.
    Total,
    /// One user.
    PerUser,
    /// One user on one day.
    PerUserPerDay,
}

/// The extra members; which ones go with which code is in the contract.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Extensions {
    /// The limit that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// What that limit still allows this caller, in units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u32>,
    /// When the daily limit is reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<Timestamp>,
    /// When the campaign opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// When the campaign closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// The campaign's version by which it was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub version: Option<Version>,
    /// The field of the request that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The claim that stands in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Box<Claim>>,
}

/// A problem as callers see it. `instance` is the request's id, set where the answer leaves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Problem {
    /// What went wrong.
    pub code: Code,
    /// This occurrence, in words.
    pub detail: String,
    /// The request's id, to find it in the logs.
    #[serde(default)]
    pub instance: String,
    /// Seconds after which asking again makes sense: the answer's `Retry-After`, no member of its JSON.
    #[serde(skip)]
    pub retry_after_s: Option<u32>,
    /// What else the code says.
    #[serde(flatten)]
    pub extensions: Extensions,
}

impl Problem {
    /// A problem with no extra members yet.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            instance: String::new(),
            retry_after_s: code.retry_after_s(),
            extensions: Extensions::default(),
        }
    }

    /// `invalid_request`, naming the field.
    pub fn invalid(field: impl Into<String>, why: impl std::fmt::Display) -> Self {
        let field = field.into();
        let mut problem = Self::new(Code::InvalidRequest, format!("{field}: {why}"));
        problem.extensions.field = Some(field);
        problem
    }

    /// The same problem with the request's id.
    #[must_use]
    pub fn of_request(self, request_id: &str) -> Self {
        Self { instance: request_id.to_owned(), ..self }
    }
}

/// [`Problem`] as it goes out.
#[derive(Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Problem))]
pub struct ProblemFields<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: Code,
    instance: &'a str,
    #[serde(flatten)]
    extensions: &'a Extensions,
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ProblemFields {
            r#type: self.code.type_uri(),
            title: self.code.title(),
            status: self.code.status(),
            detail: &self.detail,
            code: self.code,
            instance: &self.instance,
            extensions: &self.extensions,
        }
        .serialize(serializer)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Problem {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        ProblemFields::schema()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Problem {
    fn name() -> std::borrow::Cow<'static, str> {
        "Problem".into()
    }
}

/// Reads an object, and nothing else: serde's derived structs would also take an array of their members' values.
/// For `#[serde(deserialize_with)]` on a nested object; [`parse_json`] sees to the outermost.
///
/// # Errors
/// The deserializer's own, for anything but an object with the members of a `T`.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Extensions<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Extensions<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(members))
        }
    }
    deserializer.deserialize_map(Extensions(PhantomData))
}

/// Reads a request body that is one JSON object; a problem names the field that is wrong, or `body`.
///
/// # Errors
/// `invalid_request`, with that field.
pub fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    #[derive(Deserialize)]
    #[serde(transparent, bound = "T: DeserializeOwned")]
    struct Body<T>(#[serde(deserialize_with = "object")] T);

    serde_json::from_slice::<Body<T>>(body).map(|body| body.0).map_err(|plain| {
        // Only an invalid body pays for finding out where it is wrong.
        let mut reader = serde_json::Deserializer::from_slice(body);
        match serde_path_to_error::deserialize::<_, Body<T>>(&mut reader) {
            Err(error) if error.path().iter().next().is_some() => {
                Problem::invalid(error.path().to_string(), error.inner())
            }
            _ => Problem::invalid("body", plain),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_written_as_the_contract_says() {
        let mut problem = Problem::new(Code::SoldOut, "0 left in this campaign").of_request("r-1");
        problem.extensions.limit = Some(Limit::Total);
        problem.extensions.remaining = Some(0);
        assert_eq!(
            serde_json::to_string(&problem).unwrap(),
            r#"{"type":"/problems/sold-out","title":"Sold out","status":409,"detail":"0 left in this campaign","code":"sold_out","instance":"r-1","limit":"total","remaining":0}"#
        );
        let back: Problem = serde_json::from_str(&serde_json::to_string(&problem).unwrap()).unwrap();
        assert_eq!(back, problem);
    }

    #[test]
    fn every_code_is_an_error_status_and_reads_back() {
        for code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{code:?}");
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.as_str()));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), *code);
        }
    }
}
