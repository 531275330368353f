//! Errors as `application/problem+json` (RFC 9457).

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
        /// The kind of problem, for programs to switch on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $title] #[serde(rename = $snake)] $code,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// Returns the name used in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => $snake,)* }
            }

            /// Returns the code's HTTP status.
            pub fn status(self) -> u16 {
                match self { $(Self::$code => $status,)* }
            }

            /// Returns the title, the same for every occurrence.
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
    PassRequired = "pass_required", 403, "Pass required";
    ChallengeFailed = "challenge_failed", 403, "Challenge not solved";
    SoldOut = "sold_out", 409, "Sold out";
    UserLimitReached = "user_limit_reached", 409, "User limit reached";
    UserDailyLimitReached = "user_daily_limit_reached", 409, "Daily limit reached";
    ClaimExpired = "claim_expired", 409, "Claim expired";
    ClaimReturned = "claim_returned", 409, "Claim returned";
    ClaimRevoked = "claim_revoked", 409, "Claim revoked";
    HoldExtendedTooOften = "hold_extended_too_often", 409, "Hold extended too often";
    CampaignExists = "campaign_exists", 409, "Campaign exists";
    VersionConflict = "version_conflict", 409, "Version conflict";
    CampaignEnded = "campaign_ended", 409, "Campaign ended";
    CampaignOpen = "campaign_open", 409, "Campaign open";
    ImportUnfinished = "import_unfinished", 409, "Import unfinished";
    CodesMissing = "codes_missing", 409, "Codes missing";
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
    NotConfigured = "not_configured", 503, "Not configured";
    UserIdsDiffer = "user_ids_differ", 503, "User ids differ";
}

// Written by hand: utoipa's derive does not see names that a macro generates.
#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Code {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
        let text = text.description(Some(
            "The kind of problem, for programs to switch on. Later versions may add codes.",
        ));
        text.enum_values(Some(Self::ALL.iter().map(|code| code.as_str()))).build().into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Code {}

impl Code {
    /// Returns the problem type's URI reference, such as `/problems/sold-out`.
    pub fn type_uri(self) -> String {
        format!("/problems/{}", self.as_str().replace('_', "-"))
    }

    /// Returns the code's `Retry-After` in seconds, if it is the same for every occurrence.
    fn retry_after_s(self) -> Option<u32> {
        matches!(self, Self::RateLimited | Self::CampaignNotReady | Self::Overloaded | Self::Unavailable)
            .then_some(1)
    }
}

/// The limit that denied a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The limit for all users together.
    Total,
    /// The limit for one user.
    PerUser,
    /// The limit for one user per day.
    PerUserPerDay,
}

/// The extension members. The API documentation lists the members of each code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Extensions {
    /// The limit that denied the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Units that the limit still allows the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u32>,
    /// When the daily limit resets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<Timestamp>,
    /// When the campaign opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// When the campaign closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// Until when claims need a pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The version of the campaign's rules at the decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u64>))]
    pub version: Option<Version>,
    /// The invalid field of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The claim that conflicts with the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<Box<Claim>>,
}

/// A problem as callers see it. `instance` is filled in when the response is sent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Problem {
    /// The kind of problem.
    pub code: Code,
    /// A description of this occurrence.
    pub detail: String,
    /// The request id, as in the logs.
    #[serde(default)]
    pub instance: String,
    /// The response's `Retry-After` in seconds. Not part of the JSON.
    #[serde(skip)]
    pub retry_after_s: Option<u32>,
    /// The code's extension members.
    #[serde(flatten)]
    pub extensions: Extensions,
}

impl Problem {
    /// Creates a problem without extension members.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            instance: String::new(),
            retry_after_s: code.retry_after_s(),
            extensions: Extensions::default(),
        }
    }

    /// Creates an `invalid_request` problem that names the field.
    pub fn invalid(field: impl Into<String>, why: impl std::fmt::Display) -> Self {
        let field = field.into();
        let mut problem = Self::new(Code::InvalidRequest, format!("{field}: {why}"));
        problem.extensions.field = Some(field);
        problem
    }

    /// Returns the problem with the request id set.
    #[must_use]
    pub fn with_request_id(self, request_id: &str) -> Self {
        Self { instance: request_id.to_owned(), ..self }
    }
}

/// [`Problem`] as sent.
#[derive(Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Problem, description = "A problem (RFC 9457)."))]
pub struct ProblemFields<'a> {
    /// `/problems/` followed by the code with dashes.
    r#type: String,
    /// A short title, the same for every occurrence of the code.
    title: &'a str,
    /// The HTTP status.
    #[cfg_attr(feature = "openapi", schema(minimum = 400, maximum = 599))]
    status: u16,
    /// A description of this occurrence.
    detail: &'a str,
    code: Code,
    /// The request id, as in the logs.
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

/// Deserializes only objects. Structs derived by serde also accept an array of their members' values.
/// For `#[serde(deserialize_with)]` on nested objects; [`parse_json`] checks the outermost one.
///
/// # Errors
/// The deserializer's error, unless the input is an object with the members of `T`.
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

/// Parses a request body that is one JSON object. Ignores a byte order mark (RFC 8259, 8.1), and accepts `1.0` and
/// `1e0` as whole numbers, like JSON Schema.
///
/// # Errors
/// `invalid_request`. Its field is the path of the invalid or missing member, or `body` if the body is not a
/// JSON object.
pub fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    // Only rejected bodies have the cost of a second attempt.
    parse_object(body).or_else(|error| match with_whole_numbers(body) {
        Some(body) if error.is_data() => parse_object(&body).map_err(|error| rejected::<T>(&body, &error)),
        _ => Err(rejected::<T>(body, &error)),
    })
}

/// The body of a request: one object.
#[derive(Deserialize)]
#[serde(transparent, bound = "T: DeserializeOwned")]
struct Body<T>(#[serde(deserialize_with = "object")] T);

fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice::<Body<T>>(body).map(|body| body.0)
}

/// Returns the problem for `body`, which serde rejected as a `T` with `plain`.
fn rejected<T: DeserializeOwned>(body: &[u8], plain: &serde_json::Error) -> Problem {
    if !plain.is_data() {
        return Problem::invalid("body", format_args!("is not JSON: {plain}"));
    }
    // Parse once more to find the path of the error.
    let mut reader = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, Body<T>>(&mut reader) {
        Err(error) if error.path().iter().next().is_some() => {
            wrong_member(Some(error.path().to_string()), error.inner())
        }
        _ => wrong_member(None, plain),
    }
}

/// Rewrites each number like `1.0` or `1e2` in `json` as `1` or `100`; `None` if there are none.
fn with_whole_numbers(json: &[u8]) -> Option<Vec<u8>> {
    let mut rewritten = Vec::with_capacity(json.len());
    let mut rest = json;
    while let Some(first) = rest.first() {
        let length = match first {
            b'"' => string_length(rest),
            b'-' | b'0'..=b'9' => number_length(rest),
            _ => 1,
        };
        let (token, after) = rest.split_at(length);
        match whole_number(token) {
            Some(whole) => rewritten.extend_from_slice(whole.as_bytes()),
            None => rewritten.extend_from_slice(token),
        }
        rest = after;
    }
    (rewritten != json).then_some(rewritten)
}

/// Returns the length of the string literal at the start of `json`, with its quotes.
fn string_length(json: &[u8]) -> usize {
    let mut is_escaped = false;
    let end = json.iter().skip(1).position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(json.len(), |end| end + 2)
}

/// Returns the length of the number at the start of `json`.
fn number_length(json: &[u8]) -> usize {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    json.iter().position(|byte| !is_part(byte)).unwrap_or(json.len())
}

/// Returns the digits of a number with a fraction or an exponent if its value is whole. Works on the
/// string: floating-point arithmetic would add to the edge's size.
fn whole_number(token: &[u8]) -> Option<String> {
    const DIGITS_MAX: usize = 20;
    let (mantissa, exponent) = match token.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&token[..at], std::str::from_utf8(&token[at + 1..]).ok()?.parse::<isize>().ok()?),
        None => (token, 0),
    };
    let point = mantissa.iter().position(|byte| *byte == b'.');
    if point.is_none() && mantissa.len() == token.len() {
        return None;
    }
    let mut digits: Vec<u8> = mantissa.iter().copied().filter(|byte| *byte != b'.').collect();
    let whole = point.unwrap_or(mantissa.len()).checked_add_signed(exponent)?;
    if whole > DIGITS_MAX || digits.iter().skip(whole).any(|digit| *digit != b'0') {
        return None;
    }
    digits.resize(whole, b'0');
    // Without leading zeros.
    String::from_utf8(digits).ok()?.parse::<i64>().ok().map(|number| number.to_string())
}

/// Returns the problem for the member at `path`, or for the whole body. Serde names a missing member only in
/// its message.
fn wrong_member(path: Option<String>, error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    // The path already locates the member.
    let position = format!(" at line {} column {}", error.line(), error.column());
    let why = text.strip_suffix(&position).unwrap_or(&text);
    match why.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        Some(member) => {
            let member = path.map_or_else(|| member.to_owned(), |path| format!("{path}.{member}"));
            Problem::invalid(member, "is missing")
        }
        None => Problem::invalid(path.unwrap_or_else(|| "body".to_owned()), why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_serialized_as_documented() {
        let mut problem = Problem::new(Code::SoldOut, "0 left in this campaign").with_request_id("r-1");
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
    fn the_error_names_an_invalid_or_missing_member() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)] // only the errors are checked
        struct Outer {
            units: u32,
            inner: Inner,
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code)] // only the errors are checked
        struct Inner {
            name: String,
        }
        for (body, field, detail) in [
            (r#"{"inner":{"name":"n"}}"#, "units", "units: is missing"),
            (r#"{"units":1,"inner":{}}"#, "inner.name", "inner.name: is missing"),
            (r#"{"units":-5,"inner":{}}"#, "units", "units: invalid value: integer `-5`, expected u32"),
            (r#"{"unit":1}"#, "unit", "unit: unknown field `unit`, expected `units` or `inner`"),
            ("[]", "body", "body: invalid type: sequence, expected an object"),
            (r#"{"units":1,}"#, "body", "body: is not JSON: trailing comma at line 1 column 12"),
            (
                "{\"units\":1,\n\"inner\":{\"name\":}}",
                "body",
                "body: is not JSON: expected value at line 2 column 17",
            ),
            ("", "body", "body: is not JSON: EOF while parsing a value at line 1 column 0"),
        ] {
            let problem = parse_json::<Outer>(body.as_bytes()).unwrap_err();
            assert_eq!((problem.extensions.field.as_deref(), problem.detail.as_str()), (Some(field), detail));
        }
    }

    #[test]
    fn whole_numbers_may_have_a_fraction_or_an_exponent() {
        #[derive(Debug, Deserialize, PartialEq, Eq)]
        struct Sale {
            name: String,
            units: Vec<u32>,
        }
        let sale = |json: &str| parse_json::<Sale>(json.as_bytes());
        let expected = Sale { name: r#"1.0 "2e0" \"#.to_owned(), units: vec![1, 2, 300, 4_294_967_295] };
        let json =
            "\u{feff}{\"name\":\"1.0 \\\"2e0\\\" \\\\\",\"units\":[1.0, 20e-1,0.03E+4,4294967295.000]}";
        assert_eq!(sale(json), Ok(expected));
        for (units, detail) in [
            ("1.5", "floating point `1.5`"),
            ("-1.0", "integer `-1`"),
            ("4294967296.0", "integer `4294967296`"),
            ("1e400", "is not JSON"),
            ("1e30", "floating point"),
            ("9007199254740993.0", "integer `9007199254740993`"),
            ("\"1.0\"", "string \"1.0\""),
        ] {
            let problem = sale(&format!(r#"{{"name":"n","units":[{units}]}}"#)).unwrap_err();
            assert!(problem.detail.contains(detail), "{units}: {}", problem.detail);
        }
    }

    #[test]
    fn every_code_has_an_error_status_and_round_trips() {
        for code in Code::ALL {
            assert!((400..600).contains(&code.status()), "{code:?}");
            let json = serde_json::to_string(code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.as_str()));
            assert_eq!(serde_json::from_str::<Code>(&json).unwrap(), *code);
        }
    }
}
