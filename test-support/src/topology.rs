//! On which servers the tests run: `CLAIMGATE_TEST_TOPOLOGY` and `CLAIMGATE_TEST_SERVER`.

use std::io::Write as _;

use crate::redis_server::Kind;

/// What is behind a core whose test does not say which Redis it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// The Redis that core runs itself.
    Own,
    /// One server.
    Primary,
    /// A primary, two replicas, and three sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
}

/// Where there is one server, whose files, connections and settings a test can take in hand.
pub const ONE_SERVER: &[Topology] = &[Topology::Own, Topology::Primary];
/// Where core runs its server itself.
pub const OWN: &[Topology] = &[Topology::Own];

impl Topology {
    const NAMED: [(&'static str, Self); 4] = [
        ("own", Self::Own),
        ("primary", Self::Primary),
        ("sentinel", Self::Sentinel),
        ("cluster", Self::Cluster),
    ];

    /// The one that `CLAIMGATE_TEST_TOPOLOGY` names; core's own without it.
    pub fn asked() -> Self {
        asked("CLAIMGATE_TEST_TOPOLOGY", &Self::NAMED)
    }
}

impl Kind {
    const NAMED: [(&'static str, Self); 2] = [("redis", Self::Redis), ("valkey", Self::Valkey)];

    /// The one that `CLAIMGATE_TEST_SERVER` names; Redis without it.
    pub fn asked() -> Self {
        asked("CLAIMGATE_TEST_SERVER", &Self::NAMED)
    }
}

/// What the environment's `variable` names; the first one when it is unset.
pub(crate) fn asked<T: Copy>(variable: &str, named: &[(&str, T)]) -> T {
    let Ok(value) = std::env::var(variable) else { return named[0].1 };
    let found = named.iter().find(|(name, _)| *name == value);
    let known: Vec<_> = named.iter().map(|(name, _)| *name).collect();
    found.unwrap_or_else(|| panic!("{variable} must be one of {}, not {value:?}", known.join(", "))).1
}

/// Whether the test runs on the topology asked for; if not, says so past libtest, which keeps what a test prints.
/// For [`only_on!`](crate::only_on).
pub fn applies(test: &str, on: &[Topology], why: &str) -> bool {
    let topology = Topology::asked();
    let applies = on.contains(&topology);
    if !applies {
        let name = test.trim_end_matches("::here").trim_end_matches("::{{closure}}");
        let line = format!("\nnot on this topology: {name} ({topology:?}, {:?}): {why}\n", Kind::asked());
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
    applies
}

/// Ends the test here on any topology but those of the list, and names it with the reason.
#[macro_export]
macro_rules! only_on {
    ($on:expr, $why:expr) => {
        fn here() {}
        if !$crate::topology::applies(std::any::type_name_of_val(&here), $on, $why) {
            return;
        }
    };
}
