//! Numbers that only rise, each a type of its own: none is taken for another.

use std::fmt;

macro_rules! rising {
    ($($(#[$about:meta])* $name:ident;)+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The one of this number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Its number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The one after it.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> Self {
                number.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

rising! {
    /// Which load of a campaign into Redis something belongs to, 0 before the first: what an older epoch still wants to
    /// write is refused.
    Epoch;
    /// Drawn from a campaign's row by each core that is about to suspend it in Redis: what is written there under an older
    /// one is refused.
    FencingToken;
    /// Which connection to Redis, from 1: another one may lead to another server.
    Generation;
}
