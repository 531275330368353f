//! Figures: their names, targets and the values of their rounds.

use crate::machine::Disturbance;
use crate::median::median;

/// Unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Ratio,
    Claims,
    /// Events of an outbox.
    Events,
    PerSecond,
    /// Microseconds of elapsed time.
    Microseconds,
    /// Microseconds of processor time.
    CpuMicroseconds,
    Seconds,
    Bytes,
    Kilobytes,
    Mebibytes,
}

impl Unit {
    /// Formats `value` for people.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Claims => format!("{value:.1}"),
            Self::Events => thousands(value),
            Self::PerSecond => format!("{}/s", thousands(value)),
            Self::CpuMicroseconds => format!("{value:.2} µs"),
            Self::Microseconds if value < 1000.0 => format!("{value:.0} µs"),
            Self::Microseconds => format!("{:.1} ms", value / 1000.0),
            Self::Seconds => format!("{value:.2} s"),
            Self::Bytes => format!("{value:.1} B"),
            Self::Kilobytes => format!("{value:.1} KB"),
            Self::Mebibytes => format!("{value:.1} MiB"),
        }
    }
}

/// Formats a number; from 1,000 on, in thousands with one decimal.
fn thousands(value: f64) -> String {
    if value < 1000.0 { format!("{value:.0}") } else { format!("{:.1} k", value / 1000.0) }
}

/// Target of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
}

impl Target {
    pub fn number(self) -> f64 {
        let (Self::AtLeast(number) | Self::AtMost(number)) = self;
        number
    }

    /// Formats the target for people, with its sign.
    pub fn text(self, unit: Unit) -> String {
        let sign = if matches!(self, Self::AtLeast(_)) { '≥' } else { '≤' };
        format!("{sign} {}", unit.text(self.number()).replace(".0 ", " "))
    }

    /// Returns whether `value` reaches the target.
    pub fn reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

/// A figure that can be measured.
#[derive(Debug, PartialEq)]
pub struct Definition {
    /// Name in tables and reports.
    pub name: &'static str,
    pub unit: Unit,
    /// Target; `None` for informational figures.
    pub target: Option<Target>,
    /// Whether a run measures it in only one round.
    pub is_once: bool,
}

impl Definition {
    /// Defines a figure that should be `least` or more.
    pub const fn at_least(name: &'static str, unit: Unit, least: f64) -> Self {
        Self { name, unit, target: Some(Target::AtLeast(least)), is_once: false }
    }

    /// Defines a figure that should be `most` or less.
    pub const fn at_most(name: &'static str, unit: Unit, most: f64) -> Self {
        Self { name, unit, target: Some(Target::AtMost(most)), is_once: false }
    }

    /// Defines a figure without a target.
    pub const fn info(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, target: None, is_once: false }
    }

    /// Marks the figure as measured once per run.
    pub const fn once(self) -> Self {
        Self { is_once: true, ..self }
    }
}

/// Maximum spread of the rounds, relative to their median, of a quiet figure.
pub const ROUNDS_SPREAD_MAX: f64 = 0.25;

/// The measured rounds of one figure.
#[derive(Debug)]
pub struct Figure {
    pub definition: &'static Definition,
    /// One value per round.
    pub rounds: Vec<f64>,
    /// Planned number of rounds.
    pub rounds_wanted: u32,
    /// Combined disturbance of the rounds.
    pub disturbance: Disturbance,
}

impl Figure {
    /// Returns the median of the rounds.
    pub fn value(&self) -> f64 {
        median(&self.rounds)
    }

    /// Returns the lowest and the highest round.
    pub fn range(&self) -> (f64, f64) {
        let low = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        (low, self.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    /// Returns whether the target is reached; `None` without a target.
    pub fn reached(&self) -> Option<bool> {
        Some(self.definition.target?.reached(self.value()))
    }

    /// Returns why the figure is noisy; `None` if it is not.
    pub fn noise(&self) -> Option<String> {
        let (low, high) = self.range();
        let spread = (high - low) / self.value().abs().max(f64::MIN_POSITIVE);
        let rounds =
            (spread > ROUNDS_SPREAD_MAX).then(|| format!("rounds differ by {:.0} %", spread * 100.0));
        rounds.or_else(|| self.disturbance.noise_reason())
    }

    /// Returns whether the figure has fewer rounds than planned.
    pub fn lacks_rounds(&self) -> bool {
        self.rounds.len() < self.rounds_wanted as usize
    }

    /// Returns whether the figure has one round but should have several: without a spread, it is not proven
    /// quiet.
    pub fn is_unproven(&self) -> bool {
        self.rounds.len() == 1 && !self.definition.is_once
    }

    /// Returns whether the figure is noisy and only some rounds reach the target.
    pub fn is_undecided(&self) -> bool {
        let Some(target) = self.definition.target else { return false };
        let reached = self.rounds.iter().filter(|round| target.reached(**round)).count();
        self.noise().is_some() && reached != 0 && reached != self.rounds.len()
    }
}

/// The figures that a run should measure, and the measured figures in order of their first measurement.
#[derive(Debug)]
pub struct Figures {
    wanted: Vec<&'static Definition>,
    /// Planned rounds of each figure that is not measured once.
    pub rounds_wanted: u32,
    measured: Vec<Figure>,
}

impl Figures {
    /// Creates the set of planned figures without values.
    pub fn new(wanted: Vec<&'static Definition>, rounds_wanted: u32) -> Self {
        Self { wanted, rounds_wanted, measured: Vec::new() }
    }

    /// Adds one round of a figure.
    pub fn add(&mut self, definition: &'static Definition, value: f64, disturbance: Disturbance) {
        if let Some(figure) = self.measured.iter_mut().find(|figure| figure.definition == definition) {
            figure.rounds.push(value);
            figure.disturbance = figure.disturbance.with(disturbance);
        } else {
            let rounds_wanted = if definition.is_once { 1 } else { self.rounds_wanted };
            self.measured.push(Figure { definition, rounds: vec![value], rounds_wanted, disturbance });
        }
    }

    /// Removes the figures of a group that failed.
    pub fn remove(&mut self, definitions: &[&'static Definition]) {
        self.measured.retain(|figure| !definitions.contains(&figure.definition));
    }

    /// Returns the median of a figure's rounds; NaN if it was not measured.
    pub fn value(&self, definition: &'static Definition) -> f64 {
        self.measured.iter().find(|figure| figure.definition == definition).map_or(f64::NAN, Figure::value)
    }

    /// Returns the measured figures, those with a target first.
    pub fn in_order(&self) -> Vec<&Figure> {
        let (judged, info): (Vec<_>, Vec<_>) =
            self.measured.iter().partition(|figure| figure.definition.target.is_some());
        judged.into_iter().chain(info).collect()
    }

    /// Counts the measured figures that satisfy `is_such`.
    pub fn count(&self, is_such: fn(&Figure) -> bool) -> usize {
        self.measured.iter().filter(|figure| is_such(figure)).count()
    }

    /// Returns the figures without any round.
    pub fn missing(&self) -> Vec<&'static Definition> {
        let is_missing =
            |wanted: &&'static Definition| self.measured.iter().all(|figure| figure.definition != *wanted);
        self.wanted.iter().copied().filter(is_missing).collect()
    }
}
