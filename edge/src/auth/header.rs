//! The header that carries the user's token.

use claimgate_shared::http::bearer_token;
use claimgate_shared::{Code, Problem};

/// `USER_JWT_HEADER`: the header that carries the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenHeader {
    /// `Authorization`, with the scheme `Bearer`.
    Authorization,
    /// Another header, which contains only the token: a proxy sets it.
    Named(String),
}

impl TokenHeader {
    /// Returns the header's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Authorization => "authorization",
            Self::Named(name) => name,
        }
    }

    /// Returns the token in the header's `value`. The scheme's case is ignored.
    ///
    /// # Errors
    /// `unauthenticated` if the header is missing or its scheme is not `Bearer`.
    pub fn token<'a>(&self, value: Option<&'a str>) -> Result<&'a str, Problem> {
        let token = match self {
            Self::Authorization => value.and_then(bearer_token),
            Self::Named(_) => value.map(str::trim).filter(|value| !value.is_empty()),
        };
        token.ok_or_else(|| self.missing())
    }

    fn missing(&self) -> Problem {
        let detail = match self {
            Self::Authorization => {
                "a bearer token is required: send `Authorization: Bearer TOKEN`".to_owned()
            }
            Self::Named(name) => format!("a token is required in the header {name}"),
        };
        Problem::new(Code::Unauthenticated, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bearer_scheme_is_accepted() {
        let header = TokenHeader::Authorization;
        assert_eq!(header.token(Some("bearer a.b.c")), Ok("a.b.c"));
        for value in [None, Some(""), Some("a.b.c"), Some("Basic a.b.c"), Some("Bearer")] {
            assert_eq!(header.token(value), Err(header.missing()), "{value:?}");
        }
    }

    #[test]
    fn a_custom_header_contains_only_the_token() {
        let header = TokenHeader::Named("Cf-Access-Jwt-Assertion".to_owned());
        assert_eq!(header.token(Some("a.b.c")), Ok("a.b.c"));
        for value in [None, Some("")] {
            let problem = header.token(value).unwrap_err();
            assert_eq!(problem.code, Code::Unauthenticated);
            assert!(problem.detail.contains("Cf-Access-Jwt-Assertion"), "{}", problem.detail);
        }
    }
}
