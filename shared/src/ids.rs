//! Ids: `[A-Za-z0-9_-]{1,64}`, and the claim id, which contains the campaign's and the user's id.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// Maximum length of an id, in characters.
pub const ID_CHARS_MAX: usize = 64;

/// The reason why a string is not a valid id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not 1 to 64 of the allowed characters.
    #[error("must be 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'")]
    Shape,
    /// Not `campaign.user.digest`.
    #[error("must be a claim id: campaign id, user id and 22 characters, joined by dots")]
    Claim,
}

/// For each byte, whether it is one of `A-Z a-z 0-9 _ -`.
const IS_ID_BYTE: [bool; 256] = {
    let mut is_id_byte = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        is_id_byte[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        byte += 1;
    }
    is_id_byte
};

/// Returns whether `text` is 1 to 64 characters of `A-Z a-z 0-9 _ -`. Uses a table and no branches: core
/// checks the three ids of each claim on arrival and again in the relay.
fn is_id(text: &str) -> bool {
    (1..=ID_CHARS_MAX).contains(&text.len())
        && text.bytes().fold(true, |is_id, byte| is_id & IS_ID_BYTE[usize::from(byte)])
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[A-Za-z0-9_-]{1,64}$"))]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                if is_id(&text) { Ok(Self(text)) } else { Err(IdError::Shape) }
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                if is_id(text) { Ok(Self(text.to_owned())) } else { Err(IdError::Shape) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
            }
        }
    };
}

id_type! {
    /// The id of a campaign.
    CampaignId
}
id_type! {
    /// The user who claims: the `sub` of the user's token.
    UserId
}
id_type! {
    /// Identifies a claim across retries: chosen by the caller, unique for a user within a campaign.
    IdempotencyKey
}

/// The first 16 bytes of the SHA-256 of the length-prefixed campaign, user and key.
pub type ClaimDigest = [u8; 16];

/// Length of a digest in base64url without padding.
const DIGEST_CHARACTERS: usize = 22;

/// Returns the digest of `user`'s claim from `campaign` under `key`.
pub fn claim_digest(campaign: &CampaignId, user: &UserId, key: &str) -> ClaimDigest {
    let mut hash = Sha256::new();
    for field in [campaign.as_str(), user.as_str(), key] {
        crate::feed_field(|bytes| hash.update(bytes), field.as_bytes());
    }
    let mut digest = ClaimDigest::default();
    digest.copy_from_slice(&hash.finalize()[..16]);
    digest
}

/// Returns the digest as the 22 characters at the end of a claim id.
pub fn digest_text(digest: &ClaimDigest) -> String {
    URL_SAFE_NO_PAD.encode(digest)
}

/// Parses the 22 characters of a digest.
///
/// # Errors
/// [`IdError::Claim`] for any other string. Base64 is decoded strictly: stray bits would give a claim a second
/// id.
pub fn parse_digest(text: &str) -> Result<ClaimDigest, IdError> {
    let mut digest = ClaimDigest::default();
    match URL_SAFE_NO_PAD.decode_slice(text, &mut digest) {
        Ok(16) => Ok(digest),
        _ => Err(IdError::Claim),
    }
}

/// `{campaign_id}.{user_id}.{22 characters}`: the permanent id of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimId {
    /// The campaign claimed from.
    pub campaign: CampaignId,
    /// The user who claimed.
    pub user: UserId,
    /// Distinguishes the user's claims from this campaign.
    pub digest: ClaimDigest,
}

impl ClaimId {
    /// Derives the id from campaign, user and key. The result is the same on every core at any time.
    pub fn derive(campaign: CampaignId, user: UserId, key: &IdempotencyKey) -> Self {
        let digest = claim_digest(&campaign, &user, key.as_str());
        Self { campaign, user, digest }
    }

    /// Returns the id as text. Avoids `write!`, which is slow: every response to a claim contains the id.
    fn text(&self) -> String {
        let (campaign, user) = (self.campaign.as_str(), self.user.as_str());
        let mut text = String::with_capacity(campaign.len() + user.len() + 2 + DIGEST_CHARACTERS);
        text.push_str(campaign);
        text.push('.');
        text.push_str(user);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(self.digest, &mut text);
        text
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

    impl utoipa::ToSchema for super::ClaimId {}

    impl utoipa::PartialSchema for super::ClaimId {
        fn schema() -> RefOr<Schema> {
            // 16 bytes fill 21 characters and two bits of the last one.
            let pattern = r"^[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{21}[AQgw]$";
            let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
            text.examples(["demo.alice.7qS1suZRPTSNsAtig2V7tg"]).build().into()
        }
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl FromStr for ClaimId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut parts = text.split('.');
        let (Some(campaign), Some(user), Some(tail), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(IdError::Claim);
        };
        Ok(Self { campaign: campaign.parse()?, user: user.parse()?, digest: parse_digest(tail)? })
    }
}

impl Serialize for ClaimId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for ClaimId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim_id(campaign: &str, user: &str, key: &str) -> ClaimId {
        ClaimId::derive(campaign.parse().unwrap(), user.parse().unwrap(), &key.parse().unwrap())
    }

    #[test]
    fn claim_ids_never_change() {
        // printf '\0\0\0\4demo\0\0\0\5alice\0\0\0\2k1' | sha256sum
        assert_eq!(claim_id("demo", "alice", "k1").to_string(), "demo.alice.7qS1suZRPTSNsAtig2V7tg");
    }

    #[test]
    fn fields_split_differently_give_different_digests() {
        assert_ne!(claim_id("ab", "c", "d").digest, claim_id("a", "bc", "d").digest);
        assert_ne!(claim_id("a", "bc", "d").digest, claim_id("a", "b", "cd").digest);
    }

    #[test]
    fn a_digest_with_stray_bits_is_rejected() {
        let id = claim_id("demo", "alice", "k1").to_string();
        let twisted = format!("{}x", &id[..id.len() - 1]);
        assert_eq!(twisted.parse::<ClaimId>(), Err(IdError::Claim));
        assert_eq!(format!("{id}A").parse::<ClaimId>(), Err(IdError::Claim));
        assert_eq!(format!("{id}.x").parse::<ClaimId>(), Err(IdError::Claim));
    }

    proptest! {
        #[test]
        fn valid_ids_round_trip(text in "[A-Za-z0-9_-]{1,64}") {
            prop_assert_eq!(text.parse::<UserId>().unwrap().to_string(), text);
        }

        #[test]
        fn ids_contain_only_allowed_characters(text in any::<String>()) {
            let allowed = !text.is_empty() && text.chars().count() <= ID_CHARS_MAX
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            prop_assert_eq!(text.parse::<UserId>().is_ok(), allowed);
        }

        #[test]
        fn claim_ids_round_trip(c in "[A-Za-z0-9_-]{1,64}", u in "[A-Za-z0-9_-]{1,64}", k in "[A-Za-z0-9_-]{1,64}") {
            let id = claim_id(&c, &u, &k);
            prop_assert_eq!(id.to_string().parse::<ClaimId>().unwrap(), id);
        }

        #[test]
        fn parsing_a_claim_id_never_panics(text in any::<String>()) {
            let _ = text.parse::<ClaimId>();
        }
    }
}
