//! Reasons why no claim can be decided on a campaign at the moment.

use std::fmt;

/// The reason why a campaign's counters in Redis cannot be used until the campaign is reloaded from SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReadyReason {
    /// Redis has no such campaign.
    Missing,
    /// The keys have a different layout: a different version of claimgate wrote them.
    Layout,
    /// The keys belong to a campaign of another database with the same id.
    Register,
    /// A core has suspended the campaign, to load or to evict it.
    Suspended,
    /// A core is loading the campaign.
    Loading,
    /// The epoch of the keys differs from the epoch that this core expects.
    Epoch,
    /// The server was promoted after the campaign was loaded.
    Replication,
    /// Redis has fewer events than the minimum event count: it has lost some.
    Behind,
    /// One of the keys is missing, or has a different epoch.
    Sentinel,
    /// The UTC offsets in Redis end before the present.
    Days,
    /// Another core holds the lease for loading the campaign.
    LoadingElsewhere,
    /// A claim that SQL holds is missing in Redis.
    ClaimMissing,
    /// A survey found damaged keys; no script has been called yet to determine the reason.
    Damaged,
    /// Past claims are being imported, or their import was interrupted.
    Importing,
    /// SQL may have lost the campaign's latest changes; lost changes are being restored.
    Forgotten,
    /// The claim has a user id that the pinned scheme does not admit. Other cores claim under that scheme already.
    UserIds,
}

impl NotReadyReason {
    /// The reasons that scripts return, by their word in the reply.
    const FROM_SCRIPTS: [(&'static str, Self); 10] = [
        ("missing", Self::Missing),
        ("layout", Self::Layout),
        ("register", Self::Register),
        ("suspended", Self::Suspended),
        ("loading", Self::Loading),
        ("epoch", Self::Epoch),
        ("replication", Self::Replication),
        ("behind", Self::Behind),
        ("sentinel", Self::Sentinel),
        ("days", Self::Days),
    ];

    /// Returns the reason for a script's `word`; `None` if no script returns it.
    pub fn from_script(word: &str) -> Option<Self> {
        Self::FROM_SCRIPTS.iter().find(|(known, _)| *known == word).map(|(_, reason)| *reason)
    }
}

impl fmt::Display for NotReadyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "Redis does not have it",
            Self::Layout => "its keys have a different layout",
            Self::Register => "its keys belong to another database's campaign",
            Self::Suspended => "it is suspended",
            Self::Loading => "it is being loaded",
            Self::Epoch => "its keys have a different epoch",
            Self::Replication => "the Redis server was promoted after the campaign was loaded",
            Self::Behind => "Redis has lost events",
            Self::Sentinel => "one of its keys is missing or has a different epoch",
            Self::Days => "its time-zone offsets in Redis have expired",
            Self::LoadingElsewhere => "another core is loading the campaign",
            Self::Damaged => "its keys are damaged",
            Self::Importing => "an import is unfinished",
            Self::Forgotten => "SQL may have lost its latest changes; lost changes are being restored",
            Self::UserIds => "a user id is not of the scheme that has just been pinned",
            Self::ClaimMissing => "a claim that SQL holds is missing in Redis",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_in_the_scripts_is_known() {
        let texts = [
            include_str!("../../../lua/prelude.lua"),
            include_str!("../../../lua/claim.lua"),
            include_str!("../../../lua/suspend.lua"),
        ];
        let mut named = 0;
        for line in texts.iter().flat_map(|text| text.lines()) {
            for marker in ["return nil, '", "'not_ready', '"] {
                let Some((_, rest)) = line.split_once(marker) else { continue };
                let word = rest.split('\'').next().unwrap_or_default();
                assert!(NotReadyReason::from_script(word).is_some(), "{word}");
                named += 1;
            }
        }
        assert!(named >= 8, "only {named} reasons were found");
        assert_eq!(NotReadyReason::from_script("tired"), None);
    }
}
