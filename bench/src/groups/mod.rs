//! What can be measured, one module a group.

mod barrier;
mod batcher;
mod call;
mod claim_batches;
mod edge;
mod http;
mod latency;
mod look_up;
mod memory;
mod promotion;
mod relay;
mod sold_out;
mod spread;

use std::pin::Pin;

use crate::budget::Cost;
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
    /// The time that it takes: a cost for each loop over rounds, in their order. `bench/README.md` says how they are
    /// measured.
    pub parts: &'static [Cost],
    /// Measures them.
    pub run: for<'a> fn(&'a mut Session) -> Running<'a>,
}

/// All groups, in the order in which they are measured.
pub const GROUPS: &[Group] = &[
    batcher::GROUP,
    call::GROUP,
    http::GROUP,
    spread::GROUP,
    barrier::GROUP,
    look_up::GROUP,
    claim_batches::GROUP,
    sold_out::GROUP,
    latency::GROUP,
    memory::GROUP,
    promotion::GROUP,
    relay::GROUP,
    edge::GROUP,
];

/// The groups that `--only text` means: the one of this name, else those with a figure whose name has it as a part.
pub fn meant_by(text: &str) -> Vec<&'static Group> {
    let has_figure = |group: &&Group| group.figures.iter().any(|figure| figure.name.contains(text));
    match GROUPS.iter().find(|group| group.name == text) {
        Some(group) => vec![group],
        None => GROUPS.iter().filter(has_figure).collect(),
    }
}
