//! The limit of waits.

use std::time::Duration;

/// The limit of every wait for something that must happen: far longer than it takes on the slowest machine, so that it
/// elapses only if nothing would ever happen. Costs nothing while all is well.
pub const SOON: Duration = Duration::from_secs(180);
