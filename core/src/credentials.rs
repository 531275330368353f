//! Callers, and the credentials that authenticate them.

use claimgate_shared::signature::NamedKey;
use claimgate_shared::{Code, Problem, UserId};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The shortest token of a back end or an admin, in characters.
pub const TOKEN_CHARS_MIN: usize = 32;
/// The name of the one admin whose token has none; and of the edge, which has no token.
const ADMIN: &str = "admin";
const EDGE: &str = "edge";

/// What an admin may do; each may do all that those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads.
    Viewer,
    /// Adds units, pauses and resumes campaigns, confirms and returns claims.
    Operator,
    /// All.
    Admin,
}

impl Role {
    const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// As in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// With an admin token of this name and role.
    Admin(String, Role),
    /// With an API token of this name.
    BackEnd(String),
    /// The edge, for this user; `None` without a signed-in user.
    Edge(Option<UserId>),
}

impl Caller {
    /// The admin whose token has no name.
    pub fn admin() -> Self {
        Self::Admin(ADMIN.to_owned(), Role::Admin)
    }

    /// The caller's name in the audit table and in logs.
    pub fn name(&self) -> &str {
        match self {
            Self::Admin(name, _) | Self::BackEnd(name) => name,
            Self::Edge(_) => EDGE,
        }
    }

    /// What the caller may do as an admin; `None` for one that is none.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Admin(_, role) => Some(*role),
            Self::BackEnd(_) | Self::Edge(_) => None,
        }
    }

    /// The caller, if it is an admin of at least the role `needed`.
    ///
    /// # Errors
    /// `forbidden`, with the role that is needed.
    pub fn with_role(self, needed: Role) -> Result<Self, Problem> {
        match &self {
            Self::Admin(_, role) if *role >= needed => Ok(self),
            Self::Admin(_, role) => Err(forbidden(format!(
                "this call needs the role {}; this token's is {}",
                needed.as_str(),
                role.as_str()
            ))),
            _ => Err(forbidden(format!("this call needs an admin token of the role {}", needed.as_str()))),
        }
    }

    /// The caller, unless it is an admin of a lower role than `needed`: back ends and the edge have none.
    ///
    /// # Errors
    /// As [`Self::with_role`].
    pub fn unless_below(self, needed: Role) -> Result<Self, Problem> {
        match self {
            Self::Admin(..) => self.with_role(needed),
            caller => Ok(caller),
        }
    }

    /// Whether the caller may act for `user`: back ends and admins for any, the edge for the one it has signed for.
    ///
    /// # Errors
    /// `forbidden` when the edge has signed for another user.
    pub fn may_act_for(&self, user: &UserId) -> Result<(), Problem> {
        match self {
            Self::Edge(signed) if signed.as_ref() != Some(user) => {
                Err(forbidden("the edge signed for another user"))
            }
            _ => Ok(()),
        }
    }
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Forbidden, detail)
}

/// What is wrong with a list of tokens; never shows a part of it, for that may be a token in the wrong place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenListError {
    /// An item of back ends is malformed.
    #[error("must be name:token[,name:token], each token at least {TOKEN_CHARS_MIN} characters")]
    BackEnd,
    /// An item of admins is malformed.
    #[error(
        "item {0} must be name:role:token, the name 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-', the role viewer, \
         operator or admin, the token at least {TOKEN_CHARS_MIN} characters"
    )]
    Admin(usize),
    /// An item's name is another caller's.
    #[error("item {0} has a name that another caller has")]
    NameTaken(usize),
    /// An item's token is another caller's.
    #[error("item {0} has a token that another caller has")]
    TokenTaken(usize),
}

/// The tokens that are let in, as their hashes.
#[derive(Default, Clone)]
pub struct Tokens(Vec<(Caller, [u8; 32])>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Lets `caller` in by `token`.
    pub fn add(&mut self, caller: Caller, token: &str) {
        self.0.push((caller, Sha256::digest(token).into()));
    }

    /// Lets in the back ends of `list`: `name:token[,name:token]`.
    ///
    /// # Errors
    /// [`TokenListError::BackEnd`].
    pub fn add_back_ends(&mut self, list: &str) -> Result<(), TokenListError> {
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (name, token) = item
                .split_once(':')
                .filter(|(name, token)| !name.is_empty() && token.len() >= TOKEN_CHARS_MIN)
                .ok_or(TokenListError::BackEnd)?;
            self.add(Caller::BackEnd(name.to_owned()), token);
        }
        Ok(())
    }

    /// Lets in the admins of `list`: `name:role:token[,name:role:token]`. Their names and tokens must be theirs alone, so that
    /// each change on record names one of them.
    ///
    /// # Errors
    /// Any [`TokenListError`] but that of back ends.
    pub fn add_admins(&mut self, list: &str) -> Result<(), TokenListError> {
        for (at, item) in (1..).zip(list.split(',').filter(|item| !item.is_empty())) {
            let (name, role, token) = admin_item(item).ok_or(TokenListError::Admin(at))?;
            if [ADMIN, EDGE].contains(&name) || self.0.iter().any(|(caller, _)| caller.name() == name) {
                return Err(TokenListError::NameTaken(at));
            }
            if self.caller(token).is_some() {
                return Err(TokenListError::TokenTaken(at));
            }
            self.add(Caller::Admin(name.to_owned(), role), token);
        }
        Ok(())
    }

    /// Whose token this is. Looks at all of them, each in constant time.
    pub fn caller(&self, token: &str) -> Option<&Caller> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let matching = self.0.iter().filter(|(_, stored)| bool::from(stored.ct_eq(&digest)));
        matching.map(|(caller, _)| caller).next_back()
    }
}

/// Name, role and token of an admin's item.
fn admin_item(item: &str) -> Option<(&str, Role, &str)> {
    let (name, rest) = item.split_once(':')?;
    let (role, token) = rest.split_once(':')?;
    let role = Role::ALL.into_iter().find(|known| known.as_str() == role)?;
    // A name is of the alphabet of ids.
    let is_good = name.parse::<UserId>().is_ok() && token.len() >= TOKEN_CHARS_MIN;
    is_good.then_some((name, role, token))
}

/// The credentials of all callers.
#[derive(Debug)]
pub struct Credentials {
    /// Back ends' and the admins'.
    pub tokens: Tokens,
    /// Keys the edge may sign with.
    pub edge_keys: Vec<NamedKey>,
}

impl Credentials {
    /// The ids of the keys that the edge may sign with.
    pub fn kids(&self) -> Vec<&str> {
        self.edge_keys.iter().map(|key| key.kid.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "one-token-of-at-least-32-characters";
    const TWO: &str = "two-token-of-at-least-32-characters";

    fn admins(list: &str) -> Result<Tokens, TokenListError> {
        let mut tokens = Tokens::default();
        tokens.add(Caller::admin(), "the-admins-token-that-has-no-name");
        tokens.add_back_ends("shop:a-back-ends-token-of-32-characters").unwrap();
        tokens.add_admins(list).map(|()| tokens)
    }

    #[test]
    fn each_token_has_its_name_and_role() {
        let tokens = admins(&format!("ann:viewer:{ONE},,bob:operator:{TWO},")).unwrap();
        assert_eq!(tokens.caller(ONE), Some(&Caller::Admin("ann".to_owned(), Role::Viewer)));
        assert_eq!(tokens.caller(TWO), Some(&Caller::Admin("bob".to_owned(), Role::Operator)));
        assert_eq!(tokens.caller("the-admins-token-that-has-no-name"), Some(&Caller::admin()));
        assert!(admins("").is_ok());
    }

    #[test]
    fn a_list_that_is_wrong_is_told_by_the_item_and_shows_none_of_it() {
        let good = format!("ann:viewer:{ONE}");
        for (item, error) in [
            (TWO.to_owned(), TokenListError::Admin(2)),
            (format!("bob:{TWO}"), TokenListError::Admin(2)),
            (format!("bob:boss:{TWO}"), TokenListError::Admin(2)),
            (format!("bob:{TWO}:admin"), TokenListError::Admin(2)),
            (format!(":admin:{TWO}"), TokenListError::Admin(2)),
            (format!("b b:admin:{TWO}"), TokenListError::Admin(2)),
            ("bob:admin:short".to_owned(), TokenListError::Admin(2)),
            (format!("ann:admin:{TWO}"), TokenListError::NameTaken(2)),
            (format!("shop:admin:{TWO}"), TokenListError::NameTaken(2)),
            (format!("admin:admin:{TWO}"), TokenListError::NameTaken(2)),
            (format!("edge:admin:{TWO}"), TokenListError::NameTaken(2)),
            (format!("bob:admin:{ONE}"), TokenListError::TokenTaken(2)),
            ("bob:admin:a-back-ends-token-of-32-characters".to_owned(), TokenListError::TokenTaken(2)),
        ] {
            assert_eq!(admins(&format!("{good},{item}")).unwrap_err(), error, "{item}");
        }
    }

    #[test]
    fn a_role_may_do_what_those_below_it_may() {
        let caller = |role| Caller::Admin("ann".to_owned(), role);
        for (at, role) in Role::ALL.into_iter().enumerate() {
            for (needed_at, needed) in Role::ALL.into_iter().enumerate() {
                assert_eq!(caller(role).with_role(needed).is_ok(), at >= needed_at, "{role:?} {needed:?}");
            }
        }
        let refused = caller(Role::Viewer).with_role(Role::Operator).unwrap_err();
        assert_eq!(refused.detail, "this call needs the role operator; this token's is viewer");
        let shop = Caller::BackEnd("shop".to_owned());
        assert!(shop.clone().unless_below(Role::Admin).is_ok() && shop.with_role(Role::Viewer).is_err());
    }
}
