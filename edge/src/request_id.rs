//! A name for every request, made here, that core logs and problems carry.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

thread_local! {
    static LAST: Cell<Option<u128>> = const { Cell::new(None) };
}

/// 22 characters. Drawn once for this isolate, and counted on from: an id has to be told from others, not to be secret.
pub fn next() -> String {
    let id = match LAST.get() {
        Some(last) => last.wrapping_add(1),
        None => drawn(),
    };
    LAST.set(Some(id));
    URL_SAFE_NO_PAD.encode(id.to_be_bytes())
}

fn drawn() -> u128 {
    let mut bytes = [0; 16];
    // Without randomness ids of two isolates could be the same: bad for reading logs, for nothing else.
    let _ = getrandom::fill(&mut bytes);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        let (first, second) = (next(), next());
        assert_ne!(first, second);
        assert_eq!((first.len(), second.len()), (22, 22));
    }
}
