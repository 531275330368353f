//! Cross-origin requests (CORS). No cookies are used, so credentials are not allowed.

use crate::response::Response;

/// The configured origins, and the origin of one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cors<'a> {
    /// The allow-list from `CORS_ORIGINS`; empty disables CORS.
    pub allowed: &'a [String],
    /// The request's `Origin` header.
    pub origin: Option<&'a str>,
}

impl Cors<'_> {
    /// Returns the request's origin if it is on the list.
    fn allowed_origin(&self) -> Option<&str> {
        self.origin.filter(|origin| self.allowed.iter().any(|allowed| allowed == origin))
    }

    /// Returns the response to a preflight for a route with these comma-separated `methods`; `None` if the
    /// origin is not allowed.
    pub fn preflight(&self, methods: &'static str) -> Option<Response> {
        self.allowed_origin()?;
        let response = Response::empty(204)
            .with("access-control-allow-methods", methods)
            .with(
                "access-control-allow-headers",
                "Authorization, Claimgate-Attempt, Claimgate-Pass, Content-Type, Idempotency-Key, If-None-Match, Traceparent",
            )
            .with("access-control-max-age", "600");
        Some(response)
    }

    /// Adds the headers that let the request's origin read `response`, if it is allowed.
    #[must_use]
    pub fn apply(&self, response: Response) -> Response {
        if self.allowed.is_empty() {
            return response;
        }
        let response = response.with("vary", "Origin");
        match self.allowed_origin() {
            // The client needs the timings to detect that the browser sent a first try twice.
            Some(origin) => response
                .with("access-control-allow-origin", origin.to_owned())
                .with("timing-allow-origin", origin.to_owned())
                .with(
                    "access-control-expose-headers",
                    "ETag, Idempotent-Replayed, Retry-After, X-Request-Id",
                ),
            None => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_are_allowed() {
        let allowed = ["https://a.example".to_owned()];
        for (origin, is_allowed) in [
            (Some("https://a.example"), true),
            (Some("https://a.example.evil"), false),
            (Some("null"), false),
            (None, false),
        ] {
            let cors = Cors { allowed: &allowed, origin };
            let response = cors.apply(Response::empty(200).finish("r-1"));
            let expected = origin.filter(|_| is_allowed);
            assert_eq!(response.header("access-control-allow-origin"), expected);
            assert_eq!(response.header("access-control-allow-credentials"), None);
            assert_eq!(response.header("vary"), Some("Origin"));
            assert_eq!(cors.preflight("POST").is_some(), is_allowed);
        }
    }

    #[test]
    fn an_empty_list_disables_cors() {
        let cors = Cors { allowed: &[], origin: Some("https://a.example") };
        let response = cors.apply(Response::empty(200).finish("r-1"));
        assert_eq!(response.header("access-control-allow-origin"), None);
        assert_eq!(response.header("vary"), None);
        assert_eq!(cors.preflight("POST"), None);
    }
}
