//! Numbers that only increase. Each kind has its own type, so that they cannot be mixed up.

/// Declares types for numbers that only increase.
#[macro_export]
macro_rules! monotonic {
    ($($(#[$about:meta])* $name:ident;)+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
        pub struct $name(u64);

        impl $name {
            /// Wraps `number`.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Returns the number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Returns the next number.
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

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.0, f)
            }
        }
    )+};
}
