//! Parses the parts of an HTTP response that the load needs.

use anyhow::{Context as _, ensure};

const STATUS_LINE: &[u8] = b"HTTP/1.1 ";
/// Spellings of hyper and workerd.
const LENGTHS: [&[u8]; 2] = [b"\r\ncontent-length: ", b"\r\nContent-Length: "];
const END: &[u8] = b"\r\n\r\n";
const SOLD_OUT: &[u8] = br#""code":"sold_out""#;

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// Whether the response is a problem with code `sold_out`.
    pub is_sold_out: bool,
}

/// Parses `bytes` as one response; `None` while it is incomplete. More than one response is an error.
pub fn parse(bytes: &[u8]) -> anyhow::Result<Option<Response>> {
    let Some(head) = find(bytes, END) else { return Ok(None) };
    let status = bytes.strip_prefix(STATUS_LINE).and_then(number).context("a response without a status")?;
    // Includes the line end of the last header.
    let length = LENGTHS.iter().find_map(|name| {
        let at = find(&bytes[..head + 2], name)?;
        number(&bytes[at + name.len()..])
    });
    let length = length.context("a response without a content-length")?;
    let body = &bytes[head + END.len()..];
    ensure!(body.len() as u64 <= length, "more than one response");
    if (body.len() as u64) < length {
        return Ok(None);
    }
    let is_sold_out = status == 409 && find(body, SOLD_OUT).is_some();
    let status = u16::try_from(status)?;
    Ok(Some(Response { status, is_sold_out }))
}

/// Parses the digits at the start of `bytes`.
fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()
}

/// Returns the position of `what` in `bytes`.
fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let (first, rest) = what.split_first()?;
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| byte == first) {
        let after = from + at + 1;
        if bytes[after..].starts_with(rest) {
            return Some(after - 1);
        }
        from = after;
    }
    None
}
