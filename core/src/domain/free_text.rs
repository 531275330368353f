//! Checks of text that one person writes and others read, such as a campaign's name: it must not mislead
//! readers.
//!
//! The check rejects characters that are invisible or change the order of others (general categories Cc, Cf,
//! Zl and Zp). With U+202E, a name reads backwards; with U+200B, two different names look the same. Some
//! characters of Cf are necessary, and are accepted: joiners between two characters (scripts, emoji), tags
//! after a black flag (🏴 of England), and marks that enclose numbers.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory as _};

/// Zero width joiner and non-joiner.
const JOINERS: [char; 2] = ['\u{200c}', '\u{200d}'];
/// The character that a flag's tags follow.
const BLACK_FLAG: char = '\u{1f3f4}';

/// The part of [`check`] that JSON Schema can express, for characters up to U+FFFF: a visible character
/// between characters that are not rejected in every context.
pub const PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f\u00ad-\u00ad\u061c-\u061c\u180e-\u180e\u200b-\u200b\u200e-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff-\ufeff\ufff9-\ufffb]*[^\u0000-\u0020\u007f-\u00a0\u00ad-\u00ad\u034f-\u034f\u061c-\u061c\u115f-\u1160\u1680-\u1680\u17b4-\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800-\u2800\u3000-\u3000\u3164-\u3164\ufe00-\ufe0f\ufeff-\ufeff\uffa0-\uffa0\ufff0-\ufffb][^\u0000-\u001f\u007f-\u009f\u00ad-\u00ad\u061c-\u061c\u180e-\u180e\u200b-\u200b\u200e-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff-\ufeff\ufff9-\ufffb]*$";

/// The reason why a text is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text has a character that is invisible or changes the order of others.
    #[error("must not contain U+{:04X}, which is invisible or changes the order of other characters", u32::from(*.0))]
    Invisible(char),
    /// The text has no visible character.
    #[error("must have a visible character")]
    Blank,
}

/// Checks that `text` has a visible character and no misleading characters.
pub fn check(text: &str) -> Result<(), TextError> {
    let chars: Vec<char> = text.chars().collect();
    let rejected = (0..chars.len()).find(|at| is_hidden(chars[*at]) && !is_needed(&chars, *at));
    if let Some(at) = rejected {
        return Err(TextError::Invisible(chars[at]));
    }
    if chars.iter().any(|char| is_visible(*char)) { Ok(()) } else { Err(TextError::Blank) }
}

fn is_hidden(char: char) -> bool {
    use GeneralCategory::{Control, Format, LineSeparator, ParagraphSeparator};
    matches!(char.general_category(), Control | Format | LineSeparator | ParagraphSeparator)
        && !encloses_numbers(char)
}

/// Returns whether a character has the property `Prepended_Concatenation_Mark`: such characters are in
/// category Cf, but visible.
fn encloses_numbers(char: char) -> bool {
    matches!(char,
        '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{110bd}' | '\u{110cd}')
}

/// Returns whether the hidden character at `at` is needed by the text around it.
fn is_needed(chars: &[char], at: usize) -> bool {
    let (before, after) = (&chars[..at], chars.get(at + 1));
    if JOINERS.contains(&chars[at]) {
        let is_written = |char: &char| !is_hidden(*char) && !char.is_whitespace();
        return before.last().is_some_and(is_written) && after.is_some_and(is_written);
    }
    is_tag(chars[at]) && before.iter().rev().find(|char| !is_tag(**char)) == Some(&BLACK_FLAG)
}

fn is_tag(char: char) -> bool {
    ('\u{e0020}'..='\u{e007f}').contains(&char)
}

fn is_visible(char: char) -> bool {
    !(is_hidden(char) || char.is_whitespace() || is_blank(char))
}

/// Returns whether a character has no shape of its own: Unicode's property `Default_Ignorable_Code_Point`
/// without category Cf, and the empty Braille pattern.
fn is_blank(char: char) -> bool {
    matches!(char,
        '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2065}'
        | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the class of a regular expression with the characters up to U+FFFF that `accepts` rejects, negated.
    fn class_of(accepts: impl Fn(char) -> bool) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for rejected in ('\0'..='\u{ffff}').filter(|char| !accepts(*char)) {
            match (ranges.last_mut(), u32::from(rejected)) {
                (Some((_, last)), next) if *last + 1 == next => *last = next,
                (_, first) => ranges.push((first, first)),
            }
        }
        let rejected = ranges.iter().map(|(first, last)| format!("\\u{first:04x}-\\u{last:04x}"));
        format!("[^{}]", rejected.collect::<String>())
    }

    #[test]
    fn the_schema_pattern_rejects_what_the_check_rejects() {
        let accepted = class_of(|char| check(&format!("a{char}a")).is_ok());
        let visible = class_of(|char| check(&char.to_string()).is_ok());
        assert_eq!(PATTERN, format!("^{accepted}*{visible}{accepted}*$"));
    }

    #[test]
    fn invisible_and_reordering_characters_are_rejected() {
        for hidden in [
            '\0',
            '\u{7}',
            '\n',
            '\u{7f}',
            '\u{85}',
            '\u{ad}',
            '\u{61c}',
            '\u{180e}',
            '\u{200b}',
            '\u{200e}',
            '\u{200f}',
            '\u{2028}',
            '\u{2029}',
            '\u{202a}',
            '\u{202b}',
            '\u{202c}',
            '\u{202d}',
            '\u{202e}',
            '\u{2060}',
            '\u{2061}',
            '\u{2066}',
            '\u{2067}',
            '\u{2068}',
            '\u{2069}',
            '\u{206a}',
            '\u{feff}',
            '\u{fff9}',
            '\u{e0001}',
            '\u{e0041}',
        ] {
            for text in [format!("a{hidden}b"), format!("{hidden}ab"), format!("ab{hidden}")] {
                assert_eq!(check(&text), Err(TextError::Invisible(hidden)), "{text:?}");
            }
        }
        assert_eq!(
            check("a\u{202e}b").unwrap_err().to_string(),
            "must not contain U+202E, which is invisible or changes the order of other characters"
        );
    }

    #[test]
    fn joiners_and_tags_are_accepted_only_where_they_join() {
        for text in [
            "\u{200d}a",
            "a\u{200d}",
            "a \u{200d}b",
            "a\u{200c}\u{200d}b",
            "a\u{e0067}",
            "\u{1f600}\u{e0067}",
        ] {
            assert!(matches!(check(text), Err(TextError::Invisible(_))), "{text:?}");
        }
    }

    #[test]
    fn every_script_and_emoji_is_accepted() {
        for text in [
            "Demo 2026: 50 % off!",
            "春节红包",
            "مهرجان ١٢\u{600}٣",
            "می\u{200c}خواهم",
            "क्\u{200d}ष",
            "👩\u{200d}👩\u{200d}👧",
            "❤\u{fe0f}\u{200d}🔥",
            "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f} cup",
            "e\u{301}te\u{301}",
            "a\u{a0}b",
        ] {
            assert_eq!(check(text), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn a_text_without_a_visible_character_is_rejected() {
        for text in ["", " ", "\u{a0}\u{3000}", "\u{3164}", "\u{2800}\u{2800}", "\u{fe0f}", "\u{34f}"] {
            assert_eq!(check(text), Err(TextError::Blank), "{text:?}");
        }
    }
}
