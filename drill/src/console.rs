//! Progress and messages of a running drill.

/// The functions that print progress and messages of a running drill.
#[derive(Clone, Copy)]
pub struct Console<'a> {
    /// Shows the current step; each text replaces the previous one.
    pub progress: &'a dyn Fn(&str),
    /// Prints a message that stays.
    pub say: &'a dyn Fn(&str),
}
