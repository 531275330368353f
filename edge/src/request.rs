//! The request as the runtime received it. Each look at it is a call out of WebAssembly, so none is made before its result
//! is needed.

use wasm_bindgen::{JsValue, intern};
use web_sys::Headers;
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{Reflect, Uint8Array};

/// A browser's request.
#[derive(Debug)]
pub struct Request {
    raw: web_sys::Request,
    headers: Headers,
    /// The method as sent; not worker's `Method`, which turns every method that it does not know into GET.
    pub method: String,
    /// The URL's path as sent: no query, nothing decoded.
    pub path: String,
}

impl Request {
    /// Wraps `raw`. Nothing of it goes to core except what the edge has parsed.
    pub fn new(raw: web_sys::Request) -> Self {
        Self { headers: raw.headers(), method: raw.method(), path: path(&raw.url()).to_owned(), raw }
    }

    /// The runtime's own request.
    pub fn raw(&self) -> &web_sys::Request {
        &self.raw
    }

    /// The URL's query as sent, nothing decoded; empty for none.
    pub fn query(&self) -> String {
        query(&self.raw.url()).to_owned()
    }

    /// The value of the header `name`, any case; two values are joined by ", ", and `None` means that it was not sent.
    pub fn header(&self, name: &str) -> Option<String> {
        // Few names are ever looked up: each becomes a string of the runtime once.
        self.headers.get(intern(name)).ok().flatten()
    }

    /// The whole body. The runtime reads as many bytes as `Content-Length` says, so that header has to be checked before.
    ///
    /// # Errors
    /// The runtime's error when the body breaks off, or was read before.
    pub async fn body(&self) -> Result<Vec<u8>, JsValue> {
        let buffer = JsFuture::from(self.raw.array_buffer()?).await?;
        Ok(Uint8Array::new(&buffer).to_vec())
    }

    /// Tells the runtime that the body will not be read: without that, a proxy in between waits for its end.
    pub fn discard_body(&self) {
        if let Some(body) = self.raw.body() {
            // The refusal goes out whether or not the body could be cancelled.
            let _ = body.cancel();
        }
    }

    /// The address at the other end of the connection, as text, where the runtime gives it.
    pub fn peer(&self) -> Option<String> {
        let cf = Reflect::get(&self.raw, &"cf".into()).ok()?;
        Reflect::get(&cf, &"clientIp".into()).ok()?.as_string()
    }
}

fn path(url: &str) -> &str {
    let after_scheme = url.find("://").map_or(0, |at| at + 3);
    let path = url[after_scheme..].find('/').map_or("/", |at| &url[after_scheme + at..]);
    path.find(['?', '#']).map_or(path, |end| &path[..end])
}

/// The query of `url`, without the question mark; empty for none.
fn query(url: &str) -> &str {
    let url = url.split('#').next().unwrap_or_default();
    url.split_once('?').map_or("", |(_, query)| query)
}

/// Whether the `If-None-Match` header names `etag`, so that 304 answers it. Compared weakly, as GET is (RFC 9110, 13.1.2).
pub fn etag_matches(if_none_match: Option<&str>, etag: &str) -> bool {
    let list = if_none_match.unwrap_or_default();
    list.split(',').map(str::trim).any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_what_is_between_host_and_query() {
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
    fn a_query_is_what_is_behind_the_question_mark() {
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
