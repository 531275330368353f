//! Rules of HTTP that edge and core both enforce: header names, media types, the bound of a request body.
//!
//! The headers of the signature are in [`crate::signature`], the mark of a first try is [`crate::Attempt::HEADER`].

use crate::{Code, Problem};

/// The media type of request bodies, and of answers that are not problems.
pub const JSON: &str = "application/json";

/// The media type of an import's file.
pub const CSV: &str = "text/csv";

/// The largest request body of a claim or an admin call, in bytes.
pub const BODY_BYTES_MAX: usize = 4096;

/// The largest request body of a batch of claims, in bytes.
pub const BATCH_BYTES_MAX: usize = 128 * 1024;

/// The largest file of an import, in bytes.
pub const IMPORT_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Carries the request's id: made by the edge, logged by core, named in problems, returned to the client.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Carries the key that makes a claim's retries the same claim.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// Marks the answer to a repeated key; its only value is [`REPLAYED`].
pub const REPLAYED_HEADER: &str = "idempotent-replayed";

/// The value of [`REPLAYED_HEADER`].
pub const REPLAYED: &str = "true";

/// Whether a `Content-Type` names JSON, in any case; parameters such as `charset` are ignored. `None`, no header, is false.
pub fn is_json(content_type: Option<&str>) -> bool {
    is_media_type(content_type, JSON)
}

/// The same for `media_type`.
pub fn is_media_type(content_type: Option<&str>, media_type: &str) -> bool {
    let named = content_type.unwrap_or_default().split(';').next().unwrap_or_default();
    named.trim().eq_ignore_ascii_case(media_type)
}

/// The refusal of a body of more than `bytes_max` bytes: `payload_too_large`.
pub fn body_too_large(bytes_max: usize) -> Problem {
    Problem::new(Code::PayloadTooLarge, format!("the body must be at most {bytes_max} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_its_media_type_alone() {
        for json in ["application/json", "Application/JSON; charset=utf-8", " application/json ;x=y"] {
            assert!(is_json(Some(json)), "{json}");
        }
        for other in
            ["", "text/plain", "application/json, text/plain", "application/jsonp", "x/y; application/json"]
        {
            assert!(!is_json(Some(other)), "{other}");
        }
        assert!(!is_json(None));
    }

    #[test]
    fn a_body_that_is_too_large_is_told_the_bound() {
        let problem = body_too_large(BODY_BYTES_MAX);
        assert_eq!(problem.code, Code::PayloadTooLarge);
        assert_eq!(problem.detail, "the body must be at most 4096 bytes");
    }
}
