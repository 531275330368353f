//! Limits, as flags and as members of a file.

use std::num::NonZeroU32;
use std::str::FromStr;

/// A number that is at least `MIN`, or "none".
#[derive(Debug, Clone, Copy)]
pub struct LimitArg<const MIN: u32 = 1>(pub Option<u32>);

impl LimitArg {
    /// Returns the limit; an absent argument is unlimited.
    pub fn limit(arg: Option<Self>) -> Option<NonZeroU32> {
        NonZeroU32::new(arg?.0?)
    }
}

impl<const MIN: u32> FromStr for LimitArg<MIN> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        match text.parse::<i128>() {
            Ok(number) if number < MIN.into() => Err(match MIN {
                0 => format!("{number} is below 0; use 0 for a campaign that starts empty"),
                _ => format!("{number} is below {MIN}; use none for no limit"),
            }),
            Ok(number) => match u32::try_from(number) {
                Ok(limit) => Ok(Self(Some(limit))),
                Err(_) => Err(format!("{number} is above {}; use none for no limit", u32::MAX)),
            },
            Err(_) => Err(format!("must be a whole number from {MIN} to {}, or none", u32::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_out_of_range_limit_error_says_what_to_use() {
        for (text, problem) in [
            ("-5", "-5 is below 0; use 0 for a campaign that starts empty"),
            ("4294967296", "4294967296 is above 4294967295; use none for no limit"),
            ("many", "must be a whole number from 0 to 4294967295, or none"),
            ("1.5", "must be a whole number from 0 to 4294967295, or none"),
        ] {
            assert_eq!(text.parse::<LimitArg<0>>().unwrap_err(), problem);
        }
        assert_eq!("0".parse::<LimitArg>().unwrap_err(), "0 is below 1; use none for no limit");
        assert_eq!("0".parse::<LimitArg<0>>().unwrap().0, Some(0));
    }
}
