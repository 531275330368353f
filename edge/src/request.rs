//! The request as it came in. Each look at it is a call out of the Worker's own code, so none is made before it is needed.

use wasm_bindgen::{JsValue, intern};
use web_sys::{Headers, Request};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{Reflect, Uint8Array};

/// A browser's request.
#[derive(Debug)]
pub struct Incoming {
    raw: Request,
    headers: Headers,
    /// As sent; not worker's `Method`, which takes every method that it does not know for GET.
    pub method: String,
    /// Without its query; nothing in it is decoded.
    pub path: String,
}

impl Incoming {
    /// `raw`, nothing of which goes to core but what is parsed from here.
    pub fn new(raw: Request) -> Self {
        Self { headers: raw.headers(), method: raw.method(), path: path(&raw.url()).to_owned(), raw }
    }

    /// As the runtime has it.
    pub fn raw(&self) -> &Request {
        &self.raw
    }

    /// A header's value; sent twice, it is both values joined by ", ".
    pub fn header(&self, name: &str) -> Option<String> {
        // The few names that are asked for are made into the runtime's own text once.
        self.headers.get(intern(name)).ok().flatten()
    }

    /// All of the body, which is as long as its `Content-Length` says: the runtime reads no more.
    pub async fn body(&self) -> Result<Vec<u8>, JsValue> {
        let buffer = JsFuture::from(self.raw.array_buffer()?).await?;
        Ok(Uint8Array::new(&buffer).to_vec())
    }

    /// Says that a body which has no end, or too much of one, will not be read: a proxy in between would wait for its end.
    pub fn refuse_body(&self) {
        if let Some(body) = self.raw.body() {
            // What becomes of it is no matter any more.
            let _ = body.cancel();
        }
    }

    /// The address at the other end of the connection, where the runtime tells it.
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
}
