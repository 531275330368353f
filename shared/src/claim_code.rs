//! The codes of a campaign: what a winner redeems in a shop.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A code that a seller has added to a campaign: 1 to 200 visible ASCII characters without commas and double
/// quotes. It is a secret of its owner, so it appears in no debug output.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct ClaimCode(String);

/// The reason why a string is not a [`ClaimCode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {} visible ASCII characters without commas and double quotes", ClaimCode::BYTES_MAX)]
pub struct InvalidCode;

impl ClaimCode {
    /// Maximum length.
    pub const BYTES_MAX: usize = 200;

    /// Checks whether `text` is a code.
    ///
    /// # Errors
    /// If it is too long or has other characters.
    pub fn check(text: &[u8]) -> Result<(), InvalidCode> {
        let is_allowed = |byte: &u8| byte.is_ascii_graphic() && !b",\"".contains(byte);
        let is_code = (1..=Self::BYTES_MAX).contains(&text.len()) && text.iter().all(is_allowed);
        if is_code { Ok(()) } else { Err(InvalidCode) }
    }

    /// Returns the code's text. Never log it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ClaimCode {
    type Error = InvalidCode;
    fn try_from(text: String) -> Result<Self, InvalidCode> {
        Self::check(text.as_bytes())?;
        Ok(Self(text))
    }
}

impl FromStr for ClaimCode {
    type Err = InvalidCode;
    fn from_str(text: &str) -> Result<Self, InvalidCode> {
        text.to_owned().try_into()
    }
}

impl fmt::Debug for ClaimCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimCode(…)")
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ClaimCode {}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ClaimCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
        text.pattern(Some("^[!#-+.-~-]{1,200}$")).build().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_short_string_of_visible_characters() {
        for good in ["A", "SAVE-20%", "https://shop.example/redeem?c=a7&x=1#k", &"x".repeat(200)] {
            assert_eq!(good.parse::<ClaimCode>().map(|code| code.as_str() == good), Ok(true), "{good}");
        }
        for bad in ["", "A B", "A,B", "\"A\"", "Ä", "A\t", "A\n", &"x".repeat(201)] {
            assert_eq!(bad.parse::<ClaimCode>(), Err(InvalidCode), "{bad}");
        }
    }

    #[test]
    fn a_code_is_not_in_debug_output() {
        assert_eq!(format!("{:?}", "S3CRET".parse::<ClaimCode>()), "Ok(ClaimCode(…))");
    }
}
