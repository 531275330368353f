//! Callers, and the credentials that authenticate them.

use claimgate_shared::signature::NamedKey;
use claimgate_shared::user_id::Scheme;
use claimgate_shared::{Code, Problem, UserId};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The shortest token of a back end or an admin, in characters.
pub const TOKEN_CHARS_MIN: usize = 32;
/// The names of the admin whose token has no name, and of the edge, which has no token.
const ADMIN: &str = "admin";
const EDGE: &str = "edge";
/// Quotes, which a shell removes from a value but a file keeps.
const QUOTES: [char; 2] = ['"', '\''];

/// An admin's role; each role includes the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// May read.
    Viewer,
    /// May add units, pause and resume campaigns, confirm and return claims.
    Operator,
    /// May do everything.
    Admin,
}

impl Role {
    const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the role's name in the configuration.
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
    /// An admin whose token has this name and role.
    Admin(String, Role),
    /// A back end whose API token has this name.
    BackEnd(String),
    /// The edge on behalf of this user; `None` without a signed-in user. The second value is the scheme of
    /// the user's id; `None` if the edge is of a version that sends none.
    Edge(Option<UserId>, Option<Scheme>),
}

impl Caller {
    /// Returns the admin whose token has no name.
    pub fn admin() -> Self {
        Self::Admin(ADMIN.to_owned(), Role::Admin)
    }

    /// Returns the caller's name in the audit and in logs.
    pub fn name(&self) -> &str {
        match self {
            Self::Admin(name, _) | Self::BackEnd(name) => name,
            Self::Edge(..) => EDGE,
        }
    }

    /// Returns the caller's role; `None` if it is not an admin.
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Admin(_, role) => Some(*role),
            Self::BackEnd(_) | Self::Edge(..) => None,
        }
    }

    /// Returns whether the caller may read the codes of claims: an admin only with the role admin.
    pub fn may_read_codes(&self) -> bool {
        self.role().is_none_or(|role| role == Role::Admin)
    }

    /// Returns the scheme of user ids that an edge has sent.
    pub fn user_ids(&self) -> Option<Scheme> {
        match self {
            Self::Edge(_, user_ids) => *user_ids,
            Self::Admin(..) | Self::BackEnd(_) => None,
        }
    }

    /// Returns the caller if it is an admin of at least the role `needed`.
    ///
    /// # Errors
    /// `forbidden`, with the role that is needed.
    pub fn with_role(self, needed: Role) -> Result<Self, Problem> {
        match &self {
            Self::Admin(_, role) if *role >= needed => Ok(self),
            Self::Admin(_, role) => Err(forbidden(format!(
                "this call needs the role {}; this token has the role {}",
                needed.as_str(),
                role.as_str()
            ))),
            _ => Err(forbidden(format!("this call needs an admin token of the role {}", needed.as_str()))),
        }
    }

    /// Returns the caller unless it is an admin of a lower role than `needed`; back ends and the edge have no role.
    pub fn unless_below(self, needed: Role) -> Result<Self, Problem> {
        match self {
            Self::Admin(..) => self.with_role(needed),
            caller => Ok(caller),
        }
    }

    /// Checks that the caller may act for `user`: back ends and admins for any user, the edge only for the signed one.
    ///
    /// # Errors
    /// `forbidden` if the edge has signed for another user.
    pub fn may_act_for(&self, user: &UserId) -> Result<(), Problem> {
        match self {
            Self::Edge(signed, _) if signed.as_ref() != Some(user) => {
                Err(forbidden("the edge signed for another user"))
            }
            _ => Ok(()),
        }
    }
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Forbidden, detail)
}

/// The reason why a string is not a valid token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Too short to be a secret.
    #[error("must be at least {TOKEN_CHARS_MIN} characters")]
    Short,
    /// Not valid in a header, or in quotes that were probably not meant as part of the token.
    #[error("must be visible ASCII characters without spaces and not in quotes, or no caller could send it")]
    Unsendable,
}

/// Checks that `token` is a secret that a caller can send as `Authorization: Bearer …`.
pub fn check_token(token: &str) -> Result<(), TokenError> {
    if token.len() < TOKEN_CHARS_MIN {
        return Err(TokenError::Short);
    }
    let is_quoted = token.starts_with(QUOTES) || token.ends_with(QUOTES);
    if is_quoted || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenError::Unsendable);
    }
    Ok(())
}

/// Why a list of tokens is invalid. The message never shows any part of the list, which might be a misplaced token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenListError {
    /// An item of back ends is malformed.
    #[error(
        "item {0} must be name:token, with commas between items; the token at least {TOKEN_CHARS_MIN} visible ASCII \
         characters without spaces; neither in quotes"
    )]
    BackEnd(usize),
    /// A back end has a name that stands for the admin or the edge in the audit.
    #[error("item {0} must not be called {ADMIN} or {EDGE}: these names are reserved")]
    Reserved(usize),
    /// An item of admins is malformed.
    #[error(
        "item {0} must be name:role:token, the name 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-', the role viewer, \
         operator or admin, the token at least {TOKEN_CHARS_MIN} visible ASCII characters without spaces, not in quotes"
    )]
    Admin(usize),
    /// An item's name is another caller's.
    #[error("item {0} has the same name as another caller")]
    NameTaken(usize),
    /// An item's token is another caller's.
    #[error("item {0} has the same token as another caller")]
    TokenTaken(usize),
}

/// The accepted tokens, stored as hashes.
#[derive(Default, Clone)]
pub struct Tokens(Vec<(Caller, [u8; 32])>);

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

impl Tokens {
    /// Accepts `token` for `caller`.
    pub fn add(&mut self, caller: Caller, token: &str) {
        self.0.push((caller, Sha256::digest(token).into()));
    }

    /// Adds the back ends of `list`: `name:token[,name:token]`.
    pub fn add_back_ends(&mut self, list: &str) -> Result<(), TokenListError> {
        for (at, item) in items(list) {
            let (name, token) = item
                .split_once(':')
                .filter(|(name, token)| {
                    !name.is_empty() && !name.contains(QUOTES) && check_token(token).is_ok()
                })
                .ok_or(TokenListError::BackEnd(at))?;
            if [ADMIN, EDGE].contains(&name) {
                return Err(TokenListError::Reserved(at));
            }
            self.add(Caller::BackEnd(name.to_owned()), token);
        }
        Ok(())
    }

    /// Adds the admins of `list`: `name:role:token[,name:role:token]`. Names and tokens must be unique, so
    /// that each change in the audit names one of them.
    pub fn add_admins(&mut self, list: &str) -> Result<(), TokenListError> {
        for (at, item) in items(list) {
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

    /// Returns the caller with this token. Compares all tokens, each in constant time.
    pub fn caller(&self, token: &str) -> Option<&Caller> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let matching = self.0.iter().filter(|(_, stored)| bool::from(stored.ct_eq(&digest)));
        matching.map(|(caller, _)| caller).next_back()
    }
}

/// Iterates over the items of a list, numbered from 1; empty items are skipped.
fn items(list: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(list.split(',').map(str::trim).filter(|item| !item.is_empty()))
}

/// Parses an admin's item into name, role and token.
fn admin_item(item: &str) -> Option<(&str, Role, &str)> {
    let (name, rest) = item.split_once(':')?;
    let (role, token) = rest.split_once(':')?;
    let role = Role::ALL.into_iter().find(|known| known.as_str() == role)?;
    // A name has the same alphabet as an id.
    let is_good = name.parse::<UserId>().is_ok() && check_token(token).is_ok();
    is_good.then_some((name, role, token))
}

/// The credentials of all callers.
#[derive(Debug)]
pub struct Credentials {
    /// Tokens of back ends and admins.
    pub tokens: Tokens,
    /// Keys that the edge may sign with.
    pub edge_keys: Vec<NamedKey>,
}

impl Credentials {
    /// Returns the ids of the keys that the edge may sign with.
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
    fn an_invalid_list_is_reported_by_item_number_only() {
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
    fn a_token_that_no_caller_can_send_is_rejected() {
        for (around, error) in [
            ("{}", None),
            ("{}é", Some(TokenError::Unsendable)),
            (" {}", Some(TokenError::Unsendable)),
            ("{} x", Some(TokenError::Unsendable)),
            ("{}\n", Some(TokenError::Unsendable)),
            ("{}\nx", Some(TokenError::Unsendable)),
            ("\u{feff}{}", Some(TokenError::Unsendable)),
            ("\"{}\"", Some(TokenError::Unsendable)),
            ("'{}'", Some(TokenError::Unsendable)),
        ] {
            let token = around.replace("{}", ONE);
            assert_eq!(check_token(&token).err(), error, "{token:?}");
            let mut tokens = Tokens::default();
            assert_eq!(
                tokens.add_back_ends(&format!("ann:{ONE},shop:{token},")).is_err(),
                error.is_some() && token.trim_end() != ONE,
                "{token:?}"
            );
        }
        assert_eq!(check_token("short"), Err(TokenError::Short));
        let mut tokens = Tokens::default();
        for list in
            [format!("\"shop:{ONE}\""), format!("'shop':{ONE}"), format!("shop: {ONE}"), format!(":{ONE}")]
        {
            assert_eq!(tokens.add_back_ends(&list), Err(TokenListError::BackEnd(1)), "{list}");
        }
    }

    #[test]
    fn a_back_end_cannot_have_a_reserved_name() {
        for name in [ADMIN, EDGE] {
            let list = format!("shop:{ONE},{name}:{TWO}");
            assert_eq!(Tokens::default().add_back_ends(&list), Err(TokenListError::Reserved(2)));
        }
    }

    #[test]
    fn each_role_includes_the_roles_below_it() {
        let caller = |role| Caller::Admin("ann".to_owned(), role);
        for (at, role) in Role::ALL.into_iter().enumerate() {
            for (needed_at, needed) in Role::ALL.into_iter().enumerate() {
                assert_eq!(caller(role).with_role(needed).is_ok(), at >= needed_at, "{role:?} {needed:?}");
            }
        }
        let refused = caller(Role::Viewer).with_role(Role::Operator).unwrap_err();
        assert_eq!(refused.detail, "this call needs the role operator; this token has the role viewer");
        let shop = Caller::BackEnd("shop".to_owned());
        assert!(shop.clone().unless_below(Role::Admin).is_ok() && shop.with_role(Role::Viewer).is_err());
    }
}
