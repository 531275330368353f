//! Exit statuses, the same for every command.

/// Done.
pub const DONE: u8 = 0;
/// Refused by a rule.
pub const REFUSED: u8 = 1;
/// Wrong usage or configuration.
pub const USAGE: u8 = 2;
/// Redis, SQL or core does not answer.
pub const UNAVAILABLE: u8 = 3;
