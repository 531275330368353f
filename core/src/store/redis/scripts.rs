//! The scripts of `lua/`, compiled in; `replies` reads what they answer.

use std::sync::LazyLock;

use redis::Script;

/// The layout of the keys that this core reads and writes; another one is refused by the scripts.
pub const LAYOUT: u32 = 6;

macro_rules! script {
    ($(#[$doc:meta])* $name:ident, $($file:literal),+) => {
        $(#[$doc])*
        pub static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(concat!($(include_str!(concat!("../../../../lua/", $file))),+)));
    };
}

script! {
    /// Decides a list of claims.
    CLAIM, "prelude.lua", "claim.lua"
}
script! {
    /// Confirms or returns a claim.
    TRANSITION, "prelude.lua", "transition.lua"
}
/// Stops every decision until the campaign has been loaded again.
pub static SUSPEND: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../lua/suspend.lua")));
script! {
    /// Loads a campaign from SQL.
    LOAD, "prelude.lua", "load.lua"
}
script! {
    /// Removes a suspended campaign's keys.
    DROP, "drop.lua"
}
script! {
    /// Moves a malformed entry out of the relay's way.
    DEAD_LETTER, "dead_letter.lua"
}
script! {
    /// A write that replicas have to confirm.
    BARRIER, "barrier.lua"
}
script! {
    /// Leases.
    LEASE, "lease.lua"
}
script! {
    /// Applies a version of a campaign's rules.
    SET_RULES, "prelude.lua", "set_rules.lua"
}
/// Reads a claim and the campaign's counters.
pub static READ: LazyLock<Script> =
    LazyLock::new(|| with_flags(READS, include_str!("../../../../lua/read.lua")));
/// Reads what a user has of a campaign.
pub static USER: LazyLock<Script> =
    LazyLock::new(|| with_flags(READS, include_str!("../../../../lua/user.lua")));
/// Tells whether nothing is left.
pub static SOLD_OUT: LazyLock<Script> =
    LazyLock::new(|| with_flags(READS, include_str!("../../../../lua/sold_out.lua")));
/// Takes relayed entries off the outbox.
pub static ACK: LazyLock<Script> =
    LazyLock::new(|| with_flags("allow-oom", include_str!("../../../../lua/ack.lua")));

/// The flags of a script that writes nothing, and so runs without memory too, as Redis takes "no-writes": a campaign is
/// relayed, which frees memory, only once it has been found to be ready.
const READS: &str = "no-writes";

/// A script behind the prelude that Redis runs under `flags`.
fn with_flags(flags: &str, text: &str) -> Script {
    let text = [include_str!("../../../../lua/prelude.lua"), text].concat();
    Script::new(&text.replacen("#!lua\n", &format!("#!lua flags={flags}\n"), 1))
}
