//! Passes: a campaign's rule that a claim needs one, and what the edge sends core about a pass that it has verified.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::problem::object;
use crate::{Quantity, Timestamp};

/// When a campaign's claims need a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "required", rename_all = "snake_case")]
pub enum PassRule {
    /// Always.
    Always,
    /// In a presale: until the campaign opens for all.
    Until {
        /// The first instant at which no pass is needed.
        until: Timestamp,
    },
}

impl PassRule {
    /// Returns whether a claim at `now` needs a pass.
    pub fn requires_at(self, now: Timestamp) -> bool {
        match self {
            Self::Always => true,
            Self::Until { until } => now < until,
        }
    }

    /// Returns when the rule ends; `None` if it never does.
    pub fn until(self) -> Option<Timestamp> {
        match self {
            Self::Always => None,
            Self::Until { until } => Some(until),
        }
    }
}

// Written by hand: a derived form would also accept a list, and could not name the invalid member.
impl<'de> Deserialize<'de> for PassRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            required: Required,
            until: Option<Timestamp>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Required {
            Always,
            Until,
        }
        let Fields { required, until } = object(deserializer)?;
        match (required, until) {
            (Required::Always, None) => Ok(Self::Always),
            (Required::Always, Some(_)) => Err(de::Error::custom("until needs \"required\": \"until\"")),
            (Required::Until, Some(until)) => Ok(Self::Until { until }),
            (Required::Until, None) => Err(de::Error::missing_field("until")),
        }
    }
}

// Written by hand: generated clients cannot read `null` in place of a `oneOf`, which a derived schema would have.
// `openapi.json` adds which rule has `until`.
#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::schema::AdditionalProperties;
    use utoipa::openapi::{ObjectBuilder, Ref, RefOr, Schema, Type};

    impl utoipa::PartialSchema for super::PassRule {
        fn schema() -> RefOr<Schema> {
            let required =
                ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["always", "until"]));
            let rule = ObjectBuilder::new()
                .schema_type(Type::Object)
                .description(Some(
                    "When a campaign's claims need a pass: `always`, or in a presale `until` an instant, the first \
                     at which no pass is needed.",
                ))
                .property("required", required)
                .required("required")
                .property("until", Ref::from_schema_name("Timestamp"))
                .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
            Schema::Object(rule.build()).into()
        }
    }

    impl utoipa::ToSchema for super::PassRule {}
}

/// A valid pass that was sent with a claim: `shown`, or `shown:UNITS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownPass {
    /// The most units that the user may take in the whole campaign with this pass; `None` if only the campaign's limits
    /// apply.
    pub units: Option<NonZeroU32>,
}

impl ShownPass {
    /// A pass to which only the campaign's limits apply. The token of a back end or an admin serves as a pass.
    pub const UNLIMITED: Self = Self { units: None };
    const SHOWN: &str = "shown";

    /// Returns whether a user without claims may take this quantity with the pass.
    pub fn allows(self, quantity: Quantity) -> bool {
        self.units.is_none_or(|units| quantity.get() <= units.get())
    }
}

impl fmt::Display for ShownPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.units {
            Some(units) => write!(f, "{}:{units}", Self::SHOWN),
            None => f.write_str(Self::SHOWN),
        }
    }
}

/// The text is not a [`ShownPass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be shown or shown:UNITS")]
pub struct ShownPassError;

impl FromStr for ShownPass {
    type Err = ShownPassError;
    fn from_str(text: &str) -> Result<Self, ShownPassError> {
        match text.strip_prefix(Self::SHOWN).ok_or(ShownPassError)?.strip_prefix(':') {
            Some(units) => Ok(Self { units: Some(units.parse().map_err(|_| ShownPassError)?) }),
            None if text == Self::SHOWN => Ok(Self { units: None }),
            None => Err(ShownPassError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_rules_have_one_json_form() {
        let until = PassRule::Until { until: Timestamp::from_ms(10_000).unwrap() };
        for (rule, json) in [
            (PassRule::Always, r#"{"required":"always"}"#),
            (until, r#"{"required":"until","until":"1970-01-01T00:00:10.000Z"}"#),
        ] {
            assert_eq!(serde_json::to_string(&rule).unwrap(), json);
            assert_eq!(serde_json::from_str::<PassRule>(json).unwrap(), rule);
        }
        for wrong in [
            "{}",
            r#"{"required":"never"}"#,
            r#"{"required":"until"}"#,
            r#"{"required":"until","until":7}"#,
            r#"{"required":"always","until":"1970-01-01T00:00:10.000Z"}"#,
            r#"["until","1970-01-01T00:00:10.000Z"]"#,
            r#"{"required":"until","until":"1970-01-01T00:00:10.000Z","from":1}"#,
        ] {
            assert!(serde_json::from_str::<PassRule>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_presale_ends_at_its_time() {
        let at = |ms| Timestamp::from_ms(ms).unwrap();
        let presale = PassRule::Until { until: at(10) };
        assert!(presale.requires_at(at(9)));
        assert!(!presale.requires_at(at(10)));
        assert!(PassRule::Always.requires_at(at(10)));
    }

    #[test]
    fn a_shown_pass_round_trips() {
        for (text, units) in [("shown", None), ("shown:1", Some(1)), ("shown:4294967295", Some(u32::MAX))] {
            let shown = ShownPass { units: units.and_then(NonZeroU32::new) };
            assert_eq!(text.parse(), Ok(shown));
            assert_eq!(shown.to_string(), text);
        }
        for wrong in
            ["", "shown:", "shown:0", "shown:-1", "shown:4294967296", "shown1", "Shown", "pass:shown", "1"]
        {
            assert_eq!(wrong.parse::<ShownPass>(), Err(ShownPassError), "{wrong}");
        }
    }
}
