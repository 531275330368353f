//! As much of an HTTP answer as the load has to know.

use anyhow::{Context as _, ensure};

const STATUS_LINE: &[u8] = b"HTTP/1.1 ";
/// As hyper writes it, and as workerd does.
const LENGTHS: [&[u8]; 2] = [b"\r\ncontent-length: ", b"\r\nContent-Length: "];
const END: &[u8] = b"\r\n\r\n";
const SOLD_OUT: &[u8] = br#""code":"sold_out""#;

/// A whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Whether it is a problem that says `sold_out`.
    pub is_sold_out: bool,
}

/// The answer that `bytes` are, once all of it is there; more than one answer is an error.
pub fn whole(bytes: &[u8]) -> anyhow::Result<Option<Answer>> {
    let Some(head) = find(bytes, END) else { return Ok(None) };
    let status = bytes.strip_prefix(STATUS_LINE).and_then(number).context("an answer without a status")?;
    // The head with the line's end that closes its last header.
    let length = LENGTHS.iter().find_map(|name| {
        let at = find(&bytes[..head + 2], name)?;
        number(&bytes[at + name.len()..])
    });
    let length = length.context("an answer without a content-length")?;
    let body = &bytes[head + END.len()..];
    ensure!(body.len() as u64 <= length, "more than one answer");
    if (body.len() as u64) < length {
        return Ok(None);
    }
    let is_sold_out = status == 409 && find(body, SOLD_OUT).is_some();
    let status = u16::try_from(status)?;
    Ok(Some(Answer { status, is_sold_out }))
}

/// The digits that `bytes` begin with.
fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()
}

/// Where `what` begins in `bytes`.
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
