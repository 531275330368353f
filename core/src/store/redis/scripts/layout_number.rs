//! The layout numbers of the keys, read from the scripts, which define them.

/// The layout of the keys that this core reads and writes; the scripts reject decisions on any other layout.
pub const LAYOUT: u32 =
    number_after(include_str!("../../../../../lua/prelude.lua").as_bytes(), b"\nlocal LAYOUT = '");

/// The layout that this core converts: `suspend.lua` accepts it, and a load replaces it.
pub const EARLIER_LAYOUT: u32 =
    number_after(include_str!("../../../../../lua/suspend.lua").as_bytes(), b"\nlocal CONVERTED = '");

/// Returns the number after the first `name` in `text`. Compilation fails if there is none.
const fn number_after(text: &[u8], name: &[u8]) -> u32 {
    let (mut at, mut matched) = (0, 0);
    while matched < name.len() {
        matched = if text[at] == name[matched] { matched + 1 } else { (text[at] == name[0]) as usize };
        at += 1;
    }
    let mut number = 0;
    while text[at].is_ascii_digit() {
        number = number * 10 + (text[at] - b'0') as u32;
        at += 1;
    }
    assert!(number > 0, "a layout");
    number
}
