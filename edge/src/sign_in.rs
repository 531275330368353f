//! The sign-in of visitors of the claim page: with the tokens' issuer, or at a link.

use serde::Serialize;

use crate::auth::key_url::KeyUrl;
use crate::auth::settings::ISSUER;
use crate::variables::ConfigError;

const CLIENT_ID: &str = "OIDC_CLIENT_ID";
const SCOPE: &str = "OIDC_SCOPE";
const AUDIENCE: &str = "OIDC_AUDIENCE";
const LINK: &str = "SIGN_IN_URL";

/// The page that signs in with the issuer (edge/assets/sign-in).
const PAGE: &str = "/sign-in/";
/// Required for an ID token (`OpenID` Connect Core 1.0, 3.1.2.1).
const OPENID: &str = "openid";

/// The body of `/sign-in/settings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignIn {
    /// `SIGN_IN_URL`, or the path of the page that signs in with `openid`. The claim page adds `return_to`, its own
    /// URL.
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    openid: Option<OpenIdClient>,
}

/// A public client of an `OpenID` provider: authorization code with PKCE (RFC 7636).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct OpenIdClient {
    issuer: String,
    client_id: String,
    scope: String,
    /// The parameter `audience`. If set, the page sends the access token, otherwise the ID token.
    #[serde(skip_serializing_if = "Option::is_none")]
    audience: Option<String>,
}

/// Reads the settings; `None` if visitors cannot sign in on the page.
///
/// # Errors
/// Names the variable that is missing, invalid, or without effect.
pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<SignIn>, ConfigError> {
    let (client_id, link) = (variable(CLIENT_ID), variable(LINK));
    if client_id.is_none()
        && let Some(name) = [SCOPE, AUDIENCE].into_iter().find(|name| variable(name).is_some())
    {
        return Err(ConfigError::new(name, format!("has no effect without {CLIENT_ID}")));
    }
    match (client_id, link) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            Err(ConfigError::new(LINK, format!("and {CLIENT_ID} are both set; set only one")))
        }
        (None, Some(link)) => {
            KeyUrl::parse(&link).map_err(|why| ConfigError::new(LINK, why))?;
            Ok(Some(SignIn { url: link, openid: None }))
        }
        (Some(client_id), None) => {
            let openid = OpenIdClient {
                issuer: issuer(&variable)?,
                client_id,
                scope: scope(&variable)?,
                audience: variable(AUDIENCE),
            };
            Ok(Some(SignIn { url: PAGE.to_owned(), openid: Some(openid) }))
        }
    }
}

fn issuer(variable: impl Fn(&str) -> Option<String>) -> Result<String, ConfigError> {
    let issuer = variable(ISSUER).unwrap_or_default();
    let form = || ConfigError::new(ISSUER, format!("must be the provider's URL, because {CLIENT_ID} is set"));
    KeyUrl::parse(&issuer).map_err(|_| form())?;
    Ok(issuer)
}

fn scope(variable: impl Fn(&str) -> Option<String>) -> Result<String, ConfigError> {
    let scope = variable(SCOPE).unwrap_or_else(|| OPENID.to_owned());
    if scope.split(' ').any(|one| one == OPENID) {
        return Ok(scope);
    }
    Err(ConfigError::new(SCOPE, format!("must list {OPENID}, separated by spaces")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_from(variables: &[(&str, &str)]) -> Result<Value, String> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        read(variable).map(|read| json!(read)).map_err(|error| error.to_string())
    }

    #[test]
    fn visitors_sign_in_with_the_issuer_or_at_a_link() {
        let issuer = ("USER_JWT_ISS", "https://issuer.example/");
        let openid = |scope: &str| json!({"issuer": issuer.1, "client_id": "page", "scope": scope});
        let mut with_audience = openid("openid email");
        with_audience["audience"] = json!("shop");
        for (variables, expected) in [
            (vec![issuer], Value::Null),
            (
                vec![issuer, ("OIDC_CLIENT_ID", "page")],
                json!({"url": "/sign-in/", "openid": openid("openid")}),
            ),
            (
                vec![
                    issuer,
                    ("OIDC_CLIENT_ID", "page"),
                    ("OIDC_SCOPE", "openid email"),
                    ("OIDC_AUDIENCE", "shop"),
                ],
                json!({"url": "/sign-in/", "openid": with_audience}),
            ),
            (
                vec![("SIGN_IN_URL", "https://shop.example/in?x=1")],
                json!({"url": "https://shop.example/in?x=1"}),
            ),
        ] {
            assert_eq!(read_from(&variables), Ok(expected), "{variables:?}");
        }
    }

    #[test]
    fn a_setting_without_effect_is_an_error() {
        let issuer = ("USER_JWT_ISS", "https://issuer.example/");
        for (variables, expected) in [
            (vec![issuer, ("OIDC_SCOPE", "openid")], "OIDC_SCOPE has no effect without OIDC_CLIENT_ID"),
            (
                vec![("SIGN_IN_URL", "https://a.example"), ("OIDC_AUDIENCE", "shop")],
                "OIDC_AUDIENCE has no effect without OIDC_CLIENT_ID",
            ),
            (
                vec![("SIGN_IN_URL", "https://a.example"), ("OIDC_CLIENT_ID", "page")],
                "SIGN_IN_URL and OIDC_CLIENT_ID are both set; set only one",
            ),
            (
                vec![("SIGN_IN_URL", "javascript:alert(1)")],
                "SIGN_IN_URL must be https://HOST[:PORT][/PATH]; http only for a loopback address",
            ),
            (
                vec![("OIDC_CLIENT_ID", "page")],
                "USER_JWT_ISS must be the provider's URL, because OIDC_CLIENT_ID is set",
            ),
            (
                vec![issuer, ("OIDC_CLIENT_ID", "page"), ("OIDC_SCOPE", "email")],
                "OIDC_SCOPE must list openid, separated by spaces",
            ),
        ] {
            assert_eq!(read_from(&variables), Err(expected.to_owned()), "{variables:?}");
        }
    }
}
