//! Routing of the claim page's URL. The page is a static file, which reads the campaign from its own URL.

use claimgate_shared::CampaignId;

/// The response to a request for the page.
#[derive(Debug, PartialEq, Eq)]
pub enum PageAnswer {
    /// The page.
    Page,
    /// A redirect to this URL, which names the default campaign.
    Redirect(String),
    /// The list of campaigns, or the page with status 404 if none are listed: the URL names no campaign and
    /// there is no default.
    NoCampaign,
}

/// Returns whether `path` is the page's.
pub fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/index.html")
}

/// Returns the response to a request with `query`, as sent. `default_campaign` applies if the query names no campaign.
pub fn answer(query: &str, default_campaign: Option<&CampaignId>) -> PageAnswer {
    let query = query.trim_start_matches('?');
    let names_campaign = query.split('&').any(|pair| pair.split('=').next() == Some("campaign"));
    match default_campaign {
        _ if names_campaign => PageAnswer::Page,
        None => PageAnswer::NoCampaign,
        Some(id) if query.is_empty() => PageAnswer::Redirect(format!("/?campaign={id}")),
        Some(id) => PageAnswer::Redirect(format!("/?{query}&campaign={id}")),
    }
}

/// Returns the page's content security policy, extended by the `origin` of a challenge's scripts and frames.
pub fn policy_for_challenge(policy: &str, origin: &str) -> String {
    policy.replace("script-src 'self'", &format!("script-src 'self' {origin}; frame-src {origin}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_campaign_is_shown_otherwise_the_default() {
        let spring: CampaignId = "spring".parse().unwrap();
        let redirect = |location: &str| PageAnswer::Redirect(location.to_owned());
        for (query, answered, without_default) in [
            ("", redirect("/?campaign=spring"), PageAnswer::NoCampaign),
            ("lang=zh", redirect("/?lang=zh&campaign=spring"), PageAnswer::NoCampaign),
            ("campaigns=x", redirect("/?campaigns=x&campaign=spring"), PageAnswer::NoCampaign),
            ("campaign=other", PageAnswer::Page, PageAnswer::Page),
            ("lang=zh&campaign=other", PageAnswer::Page, PageAnswer::Page),
            // No redirect loop.
            ("campaign=", PageAnswer::Page, PageAnswer::Page),
            ("campaign", PageAnswer::Page, PageAnswer::Page),
        ] {
            assert_eq!(answer(query, Some(&spring)), answered, "{query}");
            assert_eq!(answer(query, None), without_default, "{query}");
        }
    }

    #[test]
    fn the_policy_allows_one_more_origin_for_a_challenge() {
        let headers = include_str!("../assets/_headers");
        let (_, policy) = headers.split_once("Content-Security-Policy: ").unwrap();
        let policy = policy.lines().next().unwrap();
        let extended = policy_for_challenge(policy, "https://a.example");
        for part in
            ["script-src 'self' https://a.example;", " frame-src https://a.example;", "connect-src 'self';"]
        {
            assert!(extended.contains(part), "{extended}");
        }
        assert_eq!(extended.matches("https://a.example").count(), 2);
    }

    #[test]
    fn the_page_has_two_paths() {
        assert!(is_page("/") && is_page("/index.html"));
        assert!(!is_page("/page.js") && !is_page("") && !is_page("/index.html/"));
    }
}
