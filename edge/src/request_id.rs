//! Request ids: one per request, drawn here, sent to core and returned to the client, so that logs and problems of both name
//! the same request.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

thread_local! {
    static LAST: Cell<Option<u128>> = const { Cell::new(None) };
}

/// The next id, 22 characters of base64url. The first one of an isolate is random, the others count on from it: ids have to
/// differ, not to be secret.
pub fn next() -> String {
    let id = match LAST.get() {
        Some(last) => last.wrapping_add(1),
        None => random(),
    };
    LAST.set(Some(id));
    URL_SAFE_NO_PAD.encode(id.to_be_bytes())
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    // Without randomness ids of two isolates could be equal, which makes logs harder to read and has no other effect.
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
