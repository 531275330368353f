//! What can be measured, one module a group.

mod gate;
mod http;

use std::pin::Pin;

use crate::figures::Definition;
use crate::session::Session;

/// A running group.
pub type Running<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// Figures that are measured together.
#[derive(Debug)]
pub struct Group {
    /// For `--only`.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// The figures that it gives.
    pub figures: &'static [&'static Definition],
    /// Measures them.
    pub run: for<'a> fn(&'a mut Session) -> Running<'a>,
}

/// All groups, in the order in which they are measured.
pub const GROUPS: &[Group] = &[gate::GROUP, http::GROUP];

impl Group {
    /// Whether `--only text` means this group: by its name, or by a part of a figure's.
    pub fn is_meant(&self, text: &str) -> bool {
        self.name == text || self.figures.iter().any(|figure| figure.name.contains(text))
    }
}
