//! The signature algorithms of user tokens (RFC 7518, 3.1; RFC 8037).

use std::str::FromStr;

/// An algorithm that signs user tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256. The verifier's key can also sign.
    Hs256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 8] = [
        Self::Hs256,
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// Returns the name used in a token's `alg`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// The text is not the name of an [`Algorithm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be HS256, RS256, RS384, RS512, PS256, ES256, ES384 or EdDSA")]
pub struct AlgorithmError;

impl FromStr for Algorithm {
    type Err = AlgorithmError;
    fn from_str(text: &str) -> Result<Self, AlgorithmError> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == text).ok_or(AlgorithmError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithms_name_is_matched_exactly() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.as_str().parse(), Ok(algorithm));
            assert_eq!(algorithm.as_str().to_lowercase().parse::<Algorithm>(), Err(AlgorithmError));
        }
        for other in ["none", "HS512", "PS384", "ES512", "ES256K", "RSA-OAEP", ""] {
            assert_eq!(other.parse::<Algorithm>(), Err(AlgorithmError), "{other}");
        }
    }
}
