//! The request as the runtime received it. Each access is a call out of WebAssembly, so values are read only
//! when needed.

use wasm_bindgen::{JsValue, intern};
use web_sys::Headers;
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{Reflect, Uint8Array};

/// A browser's request.
#[derive(Debug)]
pub struct Request {
    raw: web_sys::Request,
    headers: Headers,
    /// The method as sent. The worker crate's `Method` would turn every unknown method into GET.
    pub method: String,
    /// The URL's path as sent: without the query, not decoded.
    pub path: String,
}

impl Request {
    /// Wraps `raw`. Only values that the edge has parsed are sent to core.
    pub fn new(raw: web_sys::Request) -> Self {
        Self { headers: raw.headers(), method: raw.method(), path: path(&raw.url()).to_owned(), raw }
    }

    /// Returns the runtime's request.
    pub fn raw(&self) -> &web_sys::Request {
        &self.raw
    }

    /// Returns the URL's query as sent, not decoded; empty if there is none.
    pub fn query(&self) -> String {
        query(&self.raw.url()).to_owned()
    }

    /// Returns the header `name`, in any case. Several values are joined by ", "; `None` if it was not sent.
    pub fn header(&self, name: &str) -> Option<String> {
        // Only a few names are used, so each is interned as a runtime string.
        self.headers.get(intern(name)).ok().flatten()
    }

    /// Reads the whole body. The runtime reads as many bytes as `Content-Length` says, so check that header
    /// first.
    ///
    /// # Errors
    /// The runtime's error if the body is incomplete or was already read.
    pub async fn body(&self) -> Result<Vec<u8>, JsValue> {
        let buffer = JsFuture::from(self.raw.array_buffer()?).await?;
        Ok(Uint8Array::new(&buffer).to_vec())
    }

    /// Discards the unread body. Otherwise a proxy in between would wait for its end.
    pub fn discard_body(&self) {
        if let Some(body) = self.raw.body() {
            // The response is sent even if the body could not be cancelled.
            let _ = body.cancel();
        }
    }

    /// Returns the peer address of the connection as text, if the runtime provides it.
    pub fn peer(&self) -> Option<String> {
        let cf = Reflect::get(&self.raw, &intern("cf").into()).ok()?;
        Reflect::get(&cf, &intern("clientIp").into()).ok()?.as_string()
    }
}

fn path(url: &str) -> &str {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let path = url[after_scheme..].find('/').map_or("/", |at| &url[after_scheme + at..]);
    path.find(['?', '#']).map_or(path, |end| &path[..end])
}

/// Returns the query of `url` without the question mark; empty if there is none.
fn query(url: &str) -> &str {
    let url = url.split('#').next().unwrap_or_default();
    url.split_once('?').map_or("", |(_, query)| query)
}

/// Returns whether `If-None-Match` lists `etag`, so that the response is 304. Uses the weak comparison, as
/// required for GET (RFC 9110, 13.1.2).
pub fn etag_matches(if_none_match: Option<&str>, etag: &str) -> bool {
    let list = if_none_match.unwrap_or_default();
    list.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_between_host_and_query() {
        for (url, expected) in [
            ("http://host/v1/campaigns/demo", "/v1/campaigns/demo"),
            ("https://host:8787/?campaign=demo", "/"),
            ("http://host", "/"),
            ("http://[::1]:80/a%00b#c?d", "/a%00b"),
            ("http://host/a?b#c", "/a"),
        ] {
            assert_eq!(path(url), expected, "{url}");
        }
    }

    #[test]
    fn the_query_starts_after_the_question_mark() {
        for (url, expected) in [
            ("http://host/a?limit=2&cursor=3.x", "limit=2&cursor=3.x"),
            ("http://host/a?b?c#d", "b?c"),
            ("http://host/a#b?c", ""),
            ("http://host/a", ""),
        ] {
            assert_eq!(query(url), expected, "{url}");
        }
    }

    #[test]
    fn etags_are_compared_weakly() {
        for (header, is_match) in [
            (Some("\"a\""), true),
            (Some("W/\"a\""), true),
            (Some("\"b\", \"a\""), true),
            (Some("*"), true),
            (Some("\"b\""), false),
            (Some("a"), false),
            (None, false),
        ] {
            assert_eq!(etag_matches(header, "\"a\""), is_match, "{header:?}");
        }
    }
}
