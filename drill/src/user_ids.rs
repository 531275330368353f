//! The ids of the simulated users, which must be of the installation's user-id scheme.

use claimgate_client::{Admin, RETRY_TIMEOUT, retry_until_decided};
use claimgate_shared::user_id::{Form, Scheme, UserIdRule};
use claimgate_shared::{Code, UserId};
use serde::Deserialize as _;

use crate::DrillError;

/// The derivation of the simulated users' ids from their names.
#[derive(Debug)]
pub enum UserIds {
    /// The name is the id.
    Verbatim,
    /// Ids of the shape that core requires of its callers. No user of the edge has them.
    Shaped(Scheme),
    /// Ids as the edge derives them from the users' tokens.
    Derived(UserIdRule),
}

impl UserIds {
    /// Returns the ids for claims to core.
    ///
    /// # Errors
    /// If core does not return its user-id scheme.
    pub async fn at_core(admin: &Admin) -> Result<Self, DrillError> {
        let by_hmac = pinned(admin).await?.filter(|scheme| scheme.form() == Form::Hmac);
        Ok(by_hmac.map_or(Self::Verbatim, Self::Shaped))
    }

    /// Returns the ids for claims to the edge. `rule` has the edge's key of user ids, if that is known here.
    ///
    /// # Errors
    /// If the edge derives ids in another way.
    pub async fn at_edge(admin: &Admin, rule: Option<UserIdRule>) -> Result<Self, DrillError> {
        let ids = rule.map_or(Self::Verbatim, Self::Derived);
        ids.check_again(admin).await?;
        Ok(ids)
    }

    /// Checks that the edge derives these ids. Its first claim pins how it does.
    pub(crate) async fn check_again(&self, admin: &Admin) -> Result<(), DrillError> {
        pinned(admin).await?.map_or(Ok(()), |scheme| self.check(scheme))
    }

    fn check(&self, pinned: Scheme) -> Result<(), DrillError> {
        match self {
            Self::Verbatim if pinned.form() == Form::Hmac => Err(DrillError::Setup(format!(
                "this installation has user ids {pinned}: set CLAIMGATE_USER_ID_KEY to the edge's USER_ID_KEY, or give the \
                 URL of core"
            ))),
            Self::Derived(rule) if rule.scheme() != pinned => Err(DrillError::Setup(format!(
                "this installation has user ids {pinned}, but CLAIMGATE_USER_ID_KEY gives {}: set it and \
                 CLAIMGATE_USER_JWT_ISS as at the edge, or give the URL of core",
                rule.scheme()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the id of the user called `name`.
    pub(crate) fn id(&self, name: &UserId) -> Result<UserId, DrillError> {
        let id = match self {
            Self::Verbatim => return Ok(name.clone()),
            Self::Shaped(scheme) => {
                let prefix = scheme.id_prefix();
                let width = Scheme::HMAC_ID_CHARACTERS - prefix.len();
                format!("{prefix}{:0>width$}", name.as_str()).parse()
            }
            Self::Derived(rule) => rule.user_id(name.as_str()),
        };
        id.map_err(|error| DrillError::Setup(format!("the id of {name}: {error}")))
    }
}

/// Returns the user-id scheme that the database is pinned to; `None` also for cores of earlier versions.
async fn pinned(admin: &Admin) -> Result<Option<Scheme>, DrillError> {
    match retry_until_decided(RETRY_TIMEOUT, async || admin.user_ids().await).await {
        Ok(answer) => Ok(Scheme::deserialize(&answer.json["user_ids"]).ok()),
        Err(error) if error.is(Code::NotFound) => Ok(None),
        Err(error) => Err(DrillError::at("reading the scheme of user ids")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> UserIdRule {
        let key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA".parse().unwrap();
        UserIdRule::hmac("sub", "claimgate", key)
    }

    #[test]
    fn ids_are_of_the_installations_scheme() {
        let (scheme, name) = (rule().scheme(), "u17".parse().unwrap());
        for ids in [UserIds::Shaped(scheme), UserIds::Derived(rule())] {
            assert!(scheme.admits(&ids.id(&name).unwrap()), "{ids:?}");
        }
        assert_eq!(UserIds::Verbatim.id(&name).unwrap(), name);
        assert_ne!(
            UserIds::Shaped(scheme).id(&name).unwrap(),
            UserIds::Shaped(scheme).id(&"u7".parse().unwrap()).unwrap()
        );
    }

    #[test]
    fn the_error_names_the_scheme_of_ids_derived_differently() {
        let verbatim = UserIdRule::verbatim("sub", "claimgate").scheme();
        let message = |ids: UserIds, pinned| ids.check(pinned).err().map(|error| error.to_string());
        assert_eq!(message(UserIds::Derived(rule()), rule().scheme()), None);
        assert_eq!(message(UserIds::Verbatim, verbatim), None);
        for (ids, pinned) in [(UserIds::Verbatim, rule().scheme()), (UserIds::Derived(rule()), verbatim)] {
            let message = message(ids, pinned).unwrap();
            assert!(
                message.contains(&pinned.to_string()) && message.contains("CLAIMGATE_USER_ID_KEY"),
                "{message}"
            );
        }
    }
}
