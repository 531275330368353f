//! Cross-origin requests: which other origins' pages may read a response. No cookies are used, so no credentials are allowed.

use crate::response::Response;

/// The configured origins, and the origin of one request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cors<'a> {
    /// The allow-list, from `CORS_ORIGINS`; empty means that CORS is off.
    pub allowed: &'a [String],
    /// The request's `Origin` header.
    pub origin: Option<&'a str>,
}

impl Cors<'_> {
    /// The request's origin, if the list has it.
    fn allowed_origin(&self) -> Option<&str> {
        self.origin.filter(|origin| self.allowed.iter().any(|allowed| allowed == origin))
    }

    /// The response to a preflight of a route that takes `methods`, comma-separated; `None` when the origin is not allowed.
    pub fn preflight(&self, methods: &'static str) -> Option<Response> {
        self.allowed_origin()?;
        let response = Response::empty(204)
            .with("access-control-allow-methods", methods)
            .with(
                "access-control-allow-headers",
                "Authorization, Claimgate-Attempt, Content-Type, Idempotency-Key, If-None-Match, Traceparent",
            )
            .with("access-control-max-age", "600");
        Some(response)
    }

    /// `response` with the headers that let the request's origin read it, if it is allowed.
    #[must_use]
    pub fn apply(&self, response: Response) -> Response {
        if self.allowed.is_empty() {
            return response;
        }
        let response = response.with("vary", "Origin");
        match self.allowed_origin() {
            // By its timings the client sees that the browser has sent a first try twice.
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
    fn only_listed_origins_are_let_in() {
        let allowed = ["https://a.example".to_owned()];
        for (origin, is_let_in) in [
            (Some("https://a.example"), true),
            (Some("https://a.example.evil"), false),
            (Some("null"), false),
            (None, false),
        ] {
            let cors = Cors { allowed: &allowed, origin };
            let response = cors.apply(Response::empty(200).finish("r-1"));
            let expected = origin.filter(|_| is_let_in);
            assert_eq!(response.header("access-control-allow-origin"), expected);
            assert_eq!(response.header("access-control-allow-credentials"), None);
            assert_eq!(response.header("vary"), Some("Origin"));
            assert_eq!(cors.preflight("POST").is_some(), is_let_in);
        }
    }

    #[test]
    fn without_a_list_there_is_no_cors() {
        let cors = Cors { allowed: &[], origin: Some("https://a.example") };
        let response = cors.apply(Response::empty(200).finish("r-1"));
        assert_eq!(response.header("access-control-allow-origin"), None);
        assert_eq!(response.header("vary"), None);
        assert_eq!(cors.preflight("POST"), None);
    }
}
