//! The settings of the rules for tokens: `USER_JWT_ISS`, `USER_JWT_AUD`, `USER_JWT_REQUIRE`,
//! `USER_JWT_LEEWAY_S` and `USER_JWT_HEADER`.

use claimgate_shared::jwt::{LEEWAY_S, LEEWAY_S_MAX, RequiredClaim, TokenRules};

use super::header::TokenHeader;
use crate::variables::{ConfigError, ConfigErrors, is_header_name};

const AUDIENCE: &str = "USER_JWT_AUD";
const REQUIRE: &str = "USER_JWT_REQUIRE";
/// The value of [`AUDIENCE`] for tokens without `aud`.
const NO_AUDIENCE: &str = "none";
/// Token claims with separate rules. They do not distinguish tokens for this deployment from others.
const NOT_REQUIRABLE: [&str; 5] = ["iss", "aud", "sub", "exp", "nbf"];

/// Reads the rules with `variable`; `None` if a value is wrong.
pub(super) fn rules(
    variable: impl Fn(&str) -> Option<String>,
    errors: &mut ConfigErrors,
) -> Option<TokenRules> {
    let issuer = variable("USER_JWT_ISS").unwrap_or_else(|| "claimgate".to_owned());
    let required = errors.keep(required(&variable));
    let has_required = required.as_ref().is_none_or(|required| !required.is_empty());
    let audiences = errors.keep(audiences(&variable, has_required));
    let leeway_s = errors.keep(leeway_s(&variable));
    Some(TokenRules { issuer, audiences: audiences?, required: required?, leeway_s: leeway_s? })
}

fn audiences(
    variable: impl Fn(&str) -> Option<String>,
    has_required: bool,
) -> Result<Vec<String>, ConfigError> {
    let list = variable(AUDIENCE).unwrap_or_else(|| "claimgate".to_owned());
    if list == NO_AUDIENCE {
        // Otherwise every token of the issuer would be accepted, whichever application it is for.
        return if has_required {
            Ok(Vec::new())
        } else {
            Err(ConfigError::new(AUDIENCE, format!("is none, so set {REQUIRE}")))
        };
    }
    let audiences: Vec<_> = list.split(',').map(|one| one.trim().to_owned()).collect();
    if audiences.iter().any(|one| one.is_empty() || one == NO_AUDIENCE) {
        return Err(ConfigError::new(
            AUDIENCE,
            "must be a comma-separated list of audiences, or the word none",
        ));
    }
    Ok(audiences)
}

fn required(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<RequiredClaim>, ConfigError> {
    let Some(list) = variable(REQUIRE) else { return Ok(Vec::new()) };
    let mut claims: Vec<RequiredClaim> = Vec::new();
    for text in list.split(',') {
        let claim: RequiredClaim = text.parse().map_err(|why| ConfigError::new(REQUIRE, why))?;
        if NOT_REQUIRABLE.contains(&claim.name.as_str()) {
            return Err(ConfigError::new(REQUIRE, format!("must not list {}", claim.name)));
        }
        if claims.iter().any(|other| other.name == claim.name) {
            return Err(ConfigError::new(REQUIRE, format!("lists {} twice", claim.name)));
        }
        claims.push(claim);
    }
    Ok(claims)
}

fn leeway_s(variable: impl Fn(&str) -> Option<String>) -> Result<u32, ConfigError> {
    const NAME: &str = "USER_JWT_LEEWAY_S";
    let Some(text) = variable(NAME) else { return Ok(LEEWAY_S) };
    let seconds = text.parse().ok().filter(|seconds| *seconds <= LEEWAY_S_MAX);
    seconds.ok_or_else(|| ConfigError::new(NAME, format!("must be 0 to {LEEWAY_S_MAX} seconds")))
}

/// Reads the header that carries the token.
pub(super) fn header(variable: impl Fn(&str) -> Option<String>) -> Result<TokenHeader, ConfigError> {
    const NAME: &str = "USER_JWT_HEADER";
    match variable(NAME) {
        None => Ok(TokenHeader::Authorization),
        Some(name) if name.eq_ignore_ascii_case("authorization") => Ok(TokenHeader::Authorization),
        Some(name) if is_header_name(&name) => Ok(TokenHeader::Named(name)),
        Some(_) => Err(ConfigError::new(NAME, "must be a header name")),
    }
}
