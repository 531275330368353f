//! The URLs from which keys are fetched: `USER_JWT_JWKS_URL`, and those of discovery.

use std::net::Ipv4Addr;

/// A URL with TLS, or of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUrl {
    text: String,
    is_loopback: bool,
}

/// The text is not a [`KeyUrl`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be https://HOST[:PORT][/PATH]; http only for a loopback address")]
pub struct KeyUrlError;

impl KeyUrl {
    /// Parses a URL without user, password and fragment.
    pub fn parse(text: &str) -> Result<Self, KeyUrlError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\#\"<>".contains(&byte));
        let (scheme, rest) = text.split_once("://").ok_or(KeyUrlError)?;
        let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
        let host = host(authority).ok_or(KeyUrlError)?;
        let is_loopback = is_loopback(host);
        if is_plain && (scheme == "https" || scheme == "http" && is_loopback) {
            Ok(Self { text: text.to_owned(), is_loopback })
        } else {
            Err(KeyUrlError)
        }
    }

    /// Returns the URL of the discovery document of this issuer (`OpenID` Connect Discovery 1.0, 4).
    pub fn discovery(&self) -> String {
        format!("{}/.well-known/openid-configuration", self.text.trim_end_matches('/'))
    }

    /// Returns the URL.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns whether the URL leads to this machine.
    pub fn is_loopback(&self) -> bool {
        self.is_loopback
    }
}

fn host(authority: &str) -> Option<&str> {
    let (host, port) = match authority.rsplit_once(':') {
        // The colons of an IPv6 address are inside brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let is_address = host.starts_with('[') && host.ends_with(']');
    let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    (is_port && !host.is_empty() && (is_address || is_name)).then_some(host)
}

fn is_loopback(host: &str) -> bool {
    let is_v4 = host.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback());
    is_v4 || host == "[::1]" || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_or_this_machine_is_accepted() {
        for (text, is_loopback) in [
            ("https://issuer.example/jwks?x=1", false),
            ("https://issuer.example:8443", false),
            ("https://[2001:db8::1]/", false),
            ("http://127.0.0.1:8080/keys", true),
            ("http://127.9.9.9", true),
            ("http://[::1]:80/keys", true),
            ("http://localhost:8080/keys", true),
            ("https://LOCALHOST", true),
        ] {
            assert_eq!(KeyUrl::parse(text).map(|url| url.is_loopback()), Ok(is_loopback), "{text}");
        }
        for text in [
            "",
            "claimgate",
            "issuer.example/jwks",
            "https://",
            "https:///keys",
            "https://:443/keys",
            "https://issuer.example:0",
            "https://issuer.example:x",
            "https://user@issuer.example",
            "https://issuer.example\\@evil.example",
            "https://issuer.example/#x",
            "https://issuer.example/a b",
            "HTTPS://issuer.example",
            "http://issuer.example/jwks",
            "http://10.0.0.1/jwks",
            "http://127.0.0.1.evil.example/jwks",
            "http://localhost.evil.example/jwks",
            "http://127.0.0.1@evil.example/jwks",
            "ftp://127.0.0.1/jwks",
            "https://münchen.example",
        ] {
            assert_eq!(KeyUrl::parse(text), Err(KeyUrlError), "{text}");
        }
    }

    #[test]
    fn the_discovery_document_is_below_the_issuer() {
        let discovery = |issuer: &str| KeyUrl::parse(issuer).unwrap().discovery();
        assert_eq!(discovery("https://a.example/"), "https://a.example/.well-known/openid-configuration");
        assert_eq!(
            discovery("https://a.example/realms/x"),
            "https://a.example/realms/x/.well-known/openid-configuration"
        );
    }
}
