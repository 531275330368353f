//! The settings of user ids.

use claimgate_shared::user_id::{DEFAULT_CLAIM, Form, UserIdRule};

use crate::variables::ConfigError;

const CLAIM: &str = "USER_ID_CLAIM";
const FORM: &str = "USER_ID_FORM";
const KEY: &str = "USER_ID_KEY";

/// Reads how user ids are derived from tokens.
pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<UserIdRule, ConfigError> {
    let claim = variable(CLAIM).unwrap_or_else(|| DEFAULT_CLAIM.to_owned());
    let issuer = variable("USER_JWT_ISS").unwrap_or_else(|| "claimgate".to_owned());
    let form = match variable(FORM) {
        None => Form::Verbatim,
        Some(text) => text.parse().map_err(|why| ConfigError::new(FORM, why))?,
    };
    match (form, variable(KEY)) {
        (Form::Verbatim, None) => Ok(UserIdRule::verbatim(&claim, &issuer)),
        // A key was set, so ids were meant to be pseudonymous.
        (Form::Verbatim, Some(_)) => {
            Err(ConfigError::new(KEY, "is set, but USER_ID_FORM is not hmac: set it, or remove the key"))
        }
        (Form::Hmac, None) => Err(ConfigError::new(KEY, "is not set, but USER_ID_FORM is hmac")),
        (Form::Hmac, Some(key)) => {
            let key = key.parse().map_err(|why| ConfigError::new(KEY, why))?;
            Ok(UserIdRule::hmac(&claim, &issuer, key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";

    fn scheme(set: &[(&str, &str)]) -> Result<String, String> {
        let variable =
            |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
        read(variable).map(|rule| rule.scheme().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn ids_are_the_subject_unless_set_otherwise() {
        let issuer = ("USER_JWT_ISS", "https://example.eu.auth0.com/");
        assert_eq!(scheme(&[]).unwrap(), "verbatim:VRBHvs");
        assert_eq!(scheme(&[(FORM, "verbatim"), (CLAIM, "sub")]).unwrap(), "verbatim:VRBHvs");
        assert_eq!(scheme(&[(FORM, "hmac"), (KEY, SECRET), issuer]).unwrap(), "hmac:VR1TK4");
        assert_eq!(
            scheme(&[(FORM, "hmac"), (KEY, SECRET), (CLAIM, "email"), issuer]).unwrap(),
            "hmac:PBjTMm"
        );
    }

    #[test]
    fn the_error_names_contradictory_settings() {
        for (set, begin) in [
            (&[(FORM, "hmac")][..], "USER_ID_KEY is not set"),
            (&[(KEY, SECRET)], "USER_ID_KEY is set, but USER_ID_FORM is not hmac"),
            (&[(FORM, "verbatim"), (KEY, SECRET)], "USER_ID_KEY is set, but USER_ID_FORM is not hmac"),
            (&[(FORM, "HMAC"), (KEY, SECRET)], "USER_ID_FORM must be verbatim or hmac"),
            (&[(FORM, "hmac"), (KEY, "c2hvcnQ")], "USER_ID_KEY must be at least 32 bytes"),
        ] {
            let error = scheme(set).unwrap_err();
            assert!(error.starts_with(begin), "{error}");
            assert!(!error.contains("AQID") && !error.contains("c2hv"), "{error}");
        }
    }
}
