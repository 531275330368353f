//! Request ids. Each is generated here, sent to core and returned to the client, so that logs and problems of
//! edge and core share it.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

thread_local! {
    static LAST: Cell<Option<u128>> = const { Cell::new(None) };
}

/// Returns the next id, 22 characters of base64url. An isolate's first id is random and further ids count up
/// from it: ids must be unique, not secret.
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
    // Without randomness two isolates could produce equal ids. Logs would be harder to read, nothing more.
    let _ = getrandom::fill(&mut bytes);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        let (first, second) = (next(), next());
        assert_ne!(first, second);
        assert_eq!((first.len(), second.len()), (22, 22));
    }
}
