//! Reads JSON objects.

use std::fmt;

use serde::de::{Deserialize, Deserializer as _, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Parses the object `json`. Serde by itself would also accept a list of the members.
pub(crate) fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    if json.trim_ascii_start().starts_with(b"[") {
        return Err(serde_json::Error::custom("a list instead of an object"));
    }
    serde_json::from_slice(json)
}

/// Returns the member `name` of the object `json`; `None` if it is absent.
///
/// # Errors
/// If `json` is not one object, or the member occurs twice: two readers might pick different values.
pub(crate) fn member<'a>(json: &'a [u8], name: &str) -> Result<Option<&'a RawValue>, serde_json::Error> {
    let mut object = serde_json::Deserializer::from_slice(json);
    let value = object.deserialize_map(Member(name))?;
    object.end()?;
    Ok(value)
}

struct Member<'a>(&'a str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(name) = object.next_key::<String>()? {
            if name != self.0 {
                object.next_value::<IgnoredAny>()?;
            } else if found.replace(object.next_value()?).is_some() {
                return Err(A::Error::custom("a member occurs twice"));
            }
        }
        Ok(found)
    }
}
