//! Exit statuses, the same for every command.

/// Done.
pub const DONE: u8 = 0;
/// A rule denied the claim, or a check failed.
pub const REFUSED: u8 = 1;
/// Wrong usage or configuration.
pub const USAGE: u8 = 2;
/// Redis, SQL or core is unavailable.
pub const UNAVAILABLE: u8 = 3;
