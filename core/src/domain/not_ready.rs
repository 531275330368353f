//! Why nothing can be decided on a campaign at the moment.

use std::fmt;

/// Why a campaign's counters in Redis do not count until it has been loaded from SQL again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReadyReason {
    /// Redis has no such campaign.
    Missing,
    /// Its keys have another layout: another version of claimgate wrote them.
    Layout,
    /// Its keys belong to another register's campaign of the same name.
    Register,
    /// A core has suspended it, to load it or to evict it.
    Suspended,
    /// A core is loading it.
    Loading,
    /// Its keys are of another epoch than this core knows.
    Epoch,
    /// The server was promoted after the campaign was loaded.
    Replication,
    /// Redis has fewer events than the minimum event count: it has lost some.
    Behind,
    /// One of its keys is gone, or of another epoch.
    Sentinel,
    /// The UTC offsets in Redis do not reach to the present.
    Days,
    /// Another core holds the lease for loading it.
    LoadingElsewhere,
    /// A claim that SQL holds is missing in Redis.
    ClaimMissing,
    /// A survey found its keys damaged; no script has been asked for the reason yet.
    Damaged,
    /// Past claims are being imported, or their import broke off.
    Importing,
    /// SQL has lost its last changes of it, which are being written again.
    Forgotten,
}

impl NotReadyReason {
    /// The reasons that scripts give, by their reply word.
    const OF_SCRIPTS: [(&'static str, Self); 10] = [
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

    /// The reason that a script gives with `word`; `None` when no script does.
    pub fn of_script(word: &str) -> Option<Self> {
        Self::OF_SCRIPTS.iter().find(|(known, _)| *known == word).map(|(_, reason)| *reason)
    }
}

impl fmt::Display for NotReadyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "Redis does not have it",
            Self::Layout => "its keys have another layout",
            Self::Register => "its keys belong to another register's campaign",
            Self::Suspended => "it is suspended",
            Self::Loading => "it is being loaded",
            Self::Epoch => "its keys are of another epoch",
            Self::Replication => "the Redis server was promoted since it was loaded",
            Self::Behind => "Redis has lost events",
            Self::Sentinel => "one of its keys is gone or of another epoch",
            Self::Days => "its UTC offsets have ended",
            Self::LoadingElsewhere => "another core is loading it",
            Self::Damaged => "its keys do not look as they should",
            Self::Importing => "an import is unfinished",
            Self::Forgotten => "SQL has lost its last changes, which are being written again",
            Self::ClaimMissing => "a claim that SQL holds is missing in Redis",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_the_scripts_is_known_and_no_other() {
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
                assert!(NotReadyReason::of_script(word).is_some(), "{word}");
                named += 1;
            }
        }
        assert!(named >= 8, "only {named} reasons were found");
        assert_eq!(NotReadyReason::of_script("tired"), None);
    }
}
