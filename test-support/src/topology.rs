//! The servers that the tests run on: `CLAIMGATE_TEST_TOPOLOGY` and `CLAIMGATE_TEST_SERVER`.

use std::io::Write as _;

use crate::redis_server::Kind;

/// The Redis servers behind a core whose test does not choose any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// The Redis that core runs itself.
    Own,
    /// One server.
    Primary,
    /// A primary, two replicas and three sentinels.
    Sentinel,
    /// Three primaries with one replica each.
    Cluster,
}

/// Topologies with one server, whose files, connections and settings a test can control.
pub const ONE_SERVER: &[Topology] = &[Topology::Own, Topology::Primary];
/// The topology in which core runs the server itself.
pub const OWN: &[Topology] = &[Topology::Own];

impl Topology {
    const NAMED: [(&'static str, Self); 4] = [
        ("own", Self::Own),
        ("primary", Self::Primary),
        ("sentinel", Self::Sentinel),
        ("cluster", Self::Cluster),
    ];

    /// Returns the topology that `CLAIMGATE_TEST_TOPOLOGY` names; core's own by default.
    pub fn from_env() -> Self {
        from_variable("CLAIMGATE_TEST_TOPOLOGY", &Self::NAMED)
    }
}

impl Kind {
    const NAMED: [(&'static str, Self); 2] = [("redis", Self::Redis), ("valkey", Self::Valkey)];

    /// Returns the kind that `CLAIMGATE_TEST_SERVER` names; Redis by default.
    pub fn from_env() -> Self {
        from_variable("CLAIMGATE_TEST_SERVER", &Self::NAMED)
    }
}

/// Returns the value that the environment variable names; the first one if it is unset.
pub(crate) fn from_variable<T: Copy>(variable: &str, named: &[(&str, T)]) -> T {
    let Ok(value) = std::env::var(variable) else { return named[0].1 };
    let found = named.iter().find(|(name, _)| *name == value);
    let known: Vec<_> = named.iter().map(|(name, _)| *name).collect();
    found.unwrap_or_else(|| panic!("{variable} must be one of {}, not {value:?}", known.join(", "))).1
}

/// Returns whether the test runs on the configured topology. If not, prints that past libtest, which hides
/// the output of passing tests. For [`only_on!`](crate::only_on).
pub fn applies(test: &str, on: &[Topology], why: &str) -> bool {
    let topology = Topology::from_env();
    let applies = on.contains(&topology);
    if !applies {
        let name = test.trim_end_matches("::here").trim_end_matches("::{{closure}}");
        let line = format!("\nnot on this topology: {name} ({topology:?}, {:?}): {why}\n", Kind::from_env());
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
    applies
}

/// Ends the test on any topology outside the list, and prints its name and the reason.
#[macro_export]
macro_rules! only_on {
    ($on:expr, $why:expr) => {
        fn here() {}
        if !$crate::topology::applies(std::any::type_name_of_val(&here), $on, $why) {
            return;
        }
    };
}
