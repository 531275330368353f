//! Where the drill says what it is doing.

/// Where the drill says what it is doing.
#[derive(Clone, Copy)]
pub struct Voice<'a> {
    /// What it is at now; each text takes the place of the one before.
    pub progress: &'a dyn Fn(&str),
    /// What is worth knowing whatever comes next.
    pub say: &'a dyn Fn(&str),
}
