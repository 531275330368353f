//! The groups of measurements, one module each.

mod barrier;
mod batcher;
mod call;
mod claim_batches;
mod codes;
mod edge;
mod edge_passes;
mod http;
mod latency;
mod log;
mod look_up;
mod memory;
mod passes;
mod previous;
mod promotion;
mod relay;
mod slow;
mod sold_out;
mod spread;
mod start;
mod tails;
mod tokens;

use std::pin::Pin;

use crate::budget::Cost;
use crate::figures::Definition;
use crate::session::Session;

/// A running group.
pub type Running<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// Figures that are measured together.
#[derive(Debug)]
pub struct Group {
    /// Name for `--only`.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// Figures of the group.
    pub figures: &'static [&'static Definition],
    /// Costs of the group, one for each loop over rounds, in order. `bench/README.md` explains how to measure
    /// them.
    pub parts: &'static [Cost],
    /// Measures the figures.
    pub run: for<'a> fn(&'a mut Session) -> Running<'a>,
}

/// All groups, in the order of measurement.
pub const GROUPS: &[Group] = &[
    batcher::GROUP,
    call::GROUP,
    passes::GROUP,
    http::GROUP,
    log::GROUP,
    spread::GROUP,
    barrier::GROUP,
    look_up::GROUP,
    slow::GROUP,
    claim_batches::GROUP,
    sold_out::GROUP,
    latency::GROUP,
    tails::GROUP,
    memory::GROUP,
    promotion::GROUP,
    relay::GROUP,
    codes::GROUP,
    edge::GROUP,
    tokens::GROUP,
    previous::GROUP,
    edge_passes::GROUP,
    start::GROUP,
];

/// Returns the groups that `--only text` selects: the group of this name, otherwise those with a figure whose
/// name contains it.
pub fn matching(text: &str) -> Vec<&'static Group> {
    let has_figure = |group: &&Group| group.figures.iter().any(|figure| figure.name.contains(text));
    match GROUPS.iter().find(|group| group.name == text) {
        Some(group) => vec![group],
        None => GROUPS.iter().filter(has_figure).collect(),
    }
}
