//! Files of codes.

use std::fmt::Write as _;

/// Returns a file with `count` codes.
pub fn codes_file(count: u32) -> String {
    (0..count).fold(String::new(), |mut file, number| {
        let _ = writeln!(file, "SAVE-{number:07}");
        file
    })
}
