//! Ids: `[A-Za-z0-9_-]{1,64}`, and the claim id that leads back to its campaign and user.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// The longest id, in characters.
pub const ID_CHARS_MAX: usize = 64;

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not 1 to 64 characters of the alphabet.
    #[error("must be 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'")]
    Shape,
    /// Not `campaign.user.digest`.
    #[error("must be a claim id: campaign id, user id and 22 characters, joined by dots")]
    Claim,
}

/// Whether a byte is one of `A-Z a-z 0-9 _ -`.
const IS_OF_AN_ID: [bool; 256] = {
    let mut is_of_an_id = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        is_of_an_id[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        byte += 1;
    }
    is_of_an_id
};

/// True for 1 to 64 characters of `A-Z a-z 0-9 _ -`. By a table and without branches: each claim has three ids, which core
/// checks when it comes in and again when it is relayed.
fn is_id(text: &str) -> bool {
    (1..=ID_CHARS_MAX).contains(&text.len())
        && text.bytes().fold(true, |is_id, byte| is_id & IS_OF_AN_ID[usize::from(byte)])
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
            /// The id as text.
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
    /// One giveaway.
    CampaignId
}
id_type! {
    /// Who claims: the `sub` of the user's token.
    UserId
}
id_type! {
    /// What makes a claim and its retries one: chosen by the caller, unique for a user within a campaign.
    IdempotencyKey
}

/// The first 16 bytes of SHA-256 over the length-prefixed campaign, user and key.
pub type ClaimDigest = [u8; 16];

/// A digest in base64url without padding.
const DIGEST_CHARACTERS: usize = 22;

/// The digest of what this user claimed from this campaign under `key`.
pub fn claim_digest(campaign: &CampaignId, user: &UserId, key: &str) -> ClaimDigest {
    let mut hash = Sha256::new();
    for field in [campaign.as_str(), user.as_str(), key] {
        crate::feed_field(|bytes| hash.update(bytes), field.as_bytes());
    }
    let mut digest = ClaimDigest::default();
    digest.copy_from_slice(&hash.finalize()[..16]);
    digest
}

/// A digest's 22 characters, as they end a claim's id.
pub fn digest_text(digest: &ClaimDigest) -> String {
    URL_SAFE_NO_PAD.encode(digest)
}

/// The digest of these 22 characters.
///
/// # Errors
/// [`IdError::Claim`] for any other text. Strict base64: stray bits would give the same claim a second name.
pub fn parse_digest(text: &str) -> Result<ClaimDigest, IdError> {
    let mut digest = ClaimDigest::default();
    match URL_SAFE_NO_PAD.decode_slice(text, &mut digest) {
        Ok(16) => Ok(digest),
        _ => Err(IdError::Claim),
    }
}

/// `{campaign_id}.{user_id}.{22 characters}`: identifies one claim for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimId {
    /// The campaign claimed from.
    pub campaign: CampaignId,
    /// The user who claimed.
    pub user: UserId,
    /// What tells this user's claims apart.
    pub digest: ClaimDigest,
}

impl ClaimId {
    /// The id that this user's `key` leads to, the same on every core and at every time.
    pub fn derive(campaign: CampaignId, user: UserId, key: &IdempotencyKey) -> Self {
        let digest = claim_digest(&campaign, &user, key.as_str());
        Self { campaign, user, digest }
    }

    /// As one text. Not by `write!`, whose machinery costs more than the text: every answer to a claim has it.
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
            let text = ObjectBuilder::new().schema_type(Type::String);
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
    fn the_claim_id_is_pinned() {
        // printf '\0\0\0\4demo\0\0\0\5alice\0\0\0\2k1' | sha256sum
        assert_eq!(claim_id("demo", "alice", "k1").to_string(), "demo.alice.7qS1suZRPTSNsAtig2V7tg");
    }

    #[test]
    fn neighbours_do_not_share_an_id() {
        assert_ne!(claim_id("ab", "c", "d").digest, claim_id("a", "bc", "d").digest);
        assert_ne!(claim_id("a", "bc", "d").digest, claim_id("a", "b", "cd").digest);
    }

    #[test]
    fn a_tail_with_stray_bits_is_no_claim_id() {
        let id = claim_id("demo", "alice", "k1").to_string();
        let twisted = format!("{}x", &id[..id.len() - 1]);
        assert_eq!(twisted.parse::<ClaimId>(), Err(IdError::Claim));
        assert_eq!(format!("{id}A").parse::<ClaimId>(), Err(IdError::Claim));
        assert_eq!(format!("{id}.x").parse::<ClaimId>(), Err(IdError::Claim));
    }

    proptest! {
        #[test]
        fn ids_of_the_alphabet_parse_and_print_the_same(text in "[A-Za-z0-9_-]{1,64}") {
            prop_assert_eq!(text.parse::<UserId>().unwrap().to_string(), text);
        }

        #[test]
        fn anything_else_is_refused(text in any::<String>()) {
            let allowed = !text.is_empty() && text.chars().count() <= ID_CHARS_MAX
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            prop_assert_eq!(text.parse::<UserId>().is_ok(), allowed);
        }

        #[test]
        fn claim_ids_read_back(c in "[A-Za-z0-9_-]{1,64}", u in "[A-Za-z0-9_-]{1,64}", k in "[A-Za-z0-9_-]{1,64}") {
            let id = claim_id(&c, &u, &k);
            prop_assert_eq!(id.to_string().parse::<ClaimId>().unwrap(), id);
        }

        #[test]
        fn no_text_makes_the_claim_id_parser_panic(text in any::<String>()) {
            let _ = text.parse::<ClaimId>();
        }
    }
}
