//! The Worker's routes, except the claim page, which is a file (see `page`).

/// A route with the ids in its path, unparsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route<'a> {
    /// `/livez`
    Live,
    /// `/readyz`
    Ready,
    /// `/v1/campaigns/{id}`
    Campaign(&'a str),
    /// `/v1/campaigns/{id}/claims`
    Claims(&'a str),
    /// `/v1/campaigns/{id}/challenge`
    Challenge(&'a str),
    /// `/v1/campaigns/{id}/pass`
    Pass(&'a str),
    /// `/v1/claims/{claim_id}`
    Claim(&'a str),
    /// `/demo/token`, only if `DEMO` is set
    DemoToken,
    /// `/sign-in/settings`
    SignIn,
}

impl<'a> Route<'a> {
    /// Returns the route of `path`, if any. Nothing is decoded: ids contain no characters that need decoding.
    pub fn of(path: &'a str) -> Option<Self> {
        match path {
            "/livez" => return Some(Self::Live),
            "/readyz" => return Some(Self::Ready),
            "/demo/token" => return Some(Self::DemoToken),
            "/sign-in/settings" => return Some(Self::SignIn),
            _ => {}
        }
        if let Some(id) = path.strip_prefix("/v1/claims/") {
            return segment(id).map(Self::Claim);
        }
        let rest = path.strip_prefix("/v1/campaigns/")?;
        match rest.split_once('/') {
            None => segment(rest).map(Self::Campaign),
            Some((id, "claims")) => segment(id).map(Self::Claims),
            Some((id, "challenge")) => segment(id).map(Self::Challenge),
            Some((id, "pass")) => segment(id).map(Self::Pass),
            Some(_) => None,
        }
    }

    /// Returns the route's methods, in the format of `Allow`.
    pub fn methods(self) -> &'static str {
        match self {
            Self::Live
            | Self::Ready
            | Self::Campaign(_)
            | Self::Challenge(_)
            | Self::Claim(_)
            | Self::SignIn => "GET, HEAD",
            Self::Claims(_) => "GET, HEAD, POST",
            Self::Pass(_) | Self::DemoToken => "POST",
        }
    }

    /// Returns the path template, for traces, which must not contain ids.
    pub fn template(self) -> &'static str {
        match self {
            Self::Live => "/livez",
            Self::Ready => "/readyz",
            Self::Campaign(_) => "/v1/campaigns/{id}",
            Self::Claims(_) => "/v1/campaigns/{id}/claims",
            Self::Challenge(_) => "/v1/campaigns/{id}/challenge",
            Self::Pass(_) => "/v1/campaigns/{id}/pass",
            Self::Claim(_) => "/v1/claims/{claim_id}",
            Self::DemoToken => "/demo/token",
            Self::SignIn => "/sign-in/settings",
        }
    }

    /// Returns whether `method` is one of [`methods`](Self::methods), case-sensitively.
    pub fn allows(self, method: &str) -> bool {
        self.methods().split(", ").any(|allowed| allowed == method)
    }
}

fn segment(text: &str) -> Option<&str> {
    (!text.is_empty() && !text.contains('/')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_at_most_one_route() {
        for (path, route) in [
            ("/livez", Some(Route::Live)),
            ("/readyz", Some(Route::Ready)),
            ("/demo/token", Some(Route::DemoToken)),
            ("/sign-in/settings", Some(Route::SignIn)),
            ("/v1/campaigns/demo", Some(Route::Campaign("demo"))),
            ("/v1/campaigns/a%00b", Some(Route::Campaign("a%00b"))),
            ("/v1/campaigns/demo/claims", Some(Route::Claims("demo"))),
            ("/v1/campaigns/demo/challenge", Some(Route::Challenge("demo"))),
            ("/v1/campaigns/demo/pass", Some(Route::Pass("demo"))),
            ("/v1/claims/demo.alice.x", Some(Route::Claim("demo.alice.x"))),
            ("/", None),
            ("/sign-in/", None),
            ("/livez/", None),
            ("/v1/campaigns", None),
            ("/v1/campaigns/", None),
            ("/v1/campaigns/demo/", None),
            ("/v1/campaigns//claims", None),
            ("/v1/campaigns//pass", None),
            ("/v1/campaigns/demo/claims/", None),
            ("/v1/campaigns/demo/other", None),
            ("/v1/claims/", None),
            ("/v1/claims/a/b", None),
            ("/internal/v1/claims", None),
            ("/admin/v1/campaigns", None),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
    }

    #[test]
    fn a_method_is_matched_exactly() {
        assert!(Route::Live.allows("HEAD"));
        assert!(!Route::Live.allows("POST"));
        assert!(!Route::Live.allows("GET, HEAD"));
        assert!(!Route::Claims("demo").allows("post"));
        assert!(Route::Claims("demo").allows("GET") && Route::Claims("demo").allows("POST"));
    }
}
