//! Every route of the Worker. The claim page is not among them: it is served as assets.

/// A route, by its path; ids are raw text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route<'a> {
    /// `/livez`
    Live,
    /// `/v1/campaigns/{id}`
    Campaign(&'a str),
    /// `/v1/campaigns/{id}/claims`
    Claims(&'a str),
    /// `/v1/claims/{claim_id}`
    Claim(&'a str),
    /// `/demo/token`, which exists only where `DEMO` is set
    DemoToken,
}

impl<'a> Route<'a> {
    /// The route of `path`, if any. Nothing is decoded: no id has characters that need it.
    pub fn of(path: &'a str) -> Option<Self> {
        match path {
            "/livez" => return Some(Self::Live),
            "/demo/token" => return Some(Self::DemoToken),
            _ => {}
        }
        if let Some(id) = path.strip_prefix("/v1/claims/") {
            return segment(id).map(Self::Claim);
        }
        let rest = path.strip_prefix("/v1/campaigns/")?;
        match rest.split_once('/') {
            None => segment(rest).map(Self::Campaign),
            Some((id, "claims")) => segment(id).map(Self::Claims),
            Some(_) => None,
        }
    }

    /// The methods of the route, as `Allow` lists them.
    pub fn methods(self) -> &'static str {
        match self {
            Self::Live | Self::Campaign(_) | Self::Claim(_) => "GET, HEAD",
            Self::Claims(_) => "GET, HEAD, POST",
            Self::DemoToken => "POST",
        }
    }

    /// Its path as written above, for traces: ids are not theirs to tell.
    pub fn template(self) -> &'static str {
        match self {
            Self::Live => "/livez",
            Self::Campaign(_) => "/v1/campaigns/{id}",
            Self::Claims(_) => "/v1/campaigns/{id}/claims",
            Self::Claim(_) => "/v1/claims/{claim_id}",
            Self::DemoToken => "/demo/token",
        }
    }

    /// Whether `method` is one of [`methods`](Self::methods); its case matters.
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
    fn every_route_has_one_path() {
        for (path, route) in [
            ("/livez", Some(Route::Live)),
            ("/demo/token", Some(Route::DemoToken)),
            ("/v1/campaigns/demo", Some(Route::Campaign("demo"))),
            ("/v1/campaigns/a%00b", Some(Route::Campaign("a%00b"))),
            ("/v1/campaigns/demo/claims", Some(Route::Claims("demo"))),
            ("/v1/claims/demo.alice.x", Some(Route::Claim("demo.alice.x"))),
            ("/", None),
            ("/livez/", None),
            ("/v1/campaigns", None),
            ("/v1/campaigns/", None),
            ("/v1/campaigns/demo/", None),
            ("/v1/campaigns//claims", None),
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
    fn a_method_is_matched_whole() {
        assert!(Route::Live.allows("HEAD"));
        assert!(!Route::Live.allows("POST"));
        assert!(!Route::Live.allows("GET, HEAD"));
        assert!(!Route::Claims("demo").allows("post"));
        assert!(Route::Claims("demo").allows("GET") && Route::Claims("demo").allows("POST"));
    }
}
