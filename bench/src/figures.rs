//! Figures: what each is called, what it should come to, and what every round gave.

use crate::machine::Disturbance;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// One thing over another.
    Ratio,
    /// Claims.
    Claims,
    /// Events of an outbox.
    Events,
    /// Things per second.
    PerSecond,
    /// Microseconds that pass.
    Microseconds,
    /// Microseconds of processor time.
    CpuMicroseconds,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// MiB.
    Mebibytes,
}

impl Unit {
    /// `value` as people read it.
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
            Self::Mebibytes => format!("{value:.1} MiB"),
        }
    }
}

/// A number from a thousand on is told to a hundred.
fn thousands(value: f64) -> String {
    if value < 1000.0 { format!("{value:.0}") } else { format!("{:.1} k", value / 1000.0) }
}

/// What a figure should come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// So much or more.
    AtLeast(f64),
    /// So much or less.
    AtMost(f64),
}

impl Target {
    /// The number alone.
    pub fn number(self) -> f64 {
        let (Self::AtLeast(number) | Self::AtMost(number)) = self;
        number
    }

    /// With its sign, as people read it.
    pub fn text(self, unit: Unit) -> String {
        let sign = if matches!(self, Self::AtLeast(_)) { '≥' } else { '≤' };
        format!("{sign} {}", unit.text(self.number()).replace(".0 ", " "))
    }

    /// Whether `value` is good enough.
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
    /// In tables and in the report.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What it should come to; `None` for what is only told.
    pub target: Option<Target>,
    /// Whether a run measures it in one round only, however many rounds others have.
    pub is_once: bool,
}

impl Definition {
    /// A ratio that should be `least` or more.
    pub const fn at_least(name: &'static str, unit: Unit, least: f64) -> Self {
        Self { name, unit, target: Some(Target::AtLeast(least)), is_once: false }
    }

    /// A figure that should be `most` or less.
    pub const fn at_most(name: &'static str, unit: Unit, most: f64) -> Self {
        Self { name, unit, target: Some(Target::AtMost(most)), is_once: false }
    }

    /// A figure that nothing is demanded of.
    pub const fn told(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, target: None, is_once: false }
    }

    /// The same figure, measured once a run.
    pub const fn once(self) -> Self {
        Self { is_once: true, ..self }
    }
}

/// The largest difference between rounds, over their median, that still says something.
pub const ROUNDS_SPREAD_MAX: f64 = 0.25;

/// What the rounds of one figure gave.
#[derive(Debug)]
pub struct Figure {
    /// Which figure.
    pub definition: &'static Definition,
    /// One value a round.
    pub rounds: Vec<f64>,
    /// Rounds that the run was to have of it.
    pub rounds_wanted: u32,
    /// What went on beside the rounds, put together.
    pub disturbance: Disturbance,
}

impl Figure {
    /// The median of the rounds.
    pub fn value(&self) -> f64 {
        median(&self.rounds)
    }

    /// The lowest and the highest round.
    pub fn range(&self) -> (f64, f64) {
        let low = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        (low, self.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }

    /// Whether the target is reached; `None` without one.
    pub fn reached(&self) -> Option<bool> {
        Some(self.definition.target?.reached(self.value()))
    }

    /// Why a single run cannot be trusted to have told this figure; `None` when it can.
    pub fn noise(&self) -> Option<String> {
        let (low, high) = self.range();
        let spread = (high - low) / self.value().abs().max(f64::MIN_POSITIVE);
        let rounds =
            (spread > ROUNDS_SPREAD_MAX).then(|| format!("rounds differ by {:.0} %", spread * 100.0));
        rounds.or_else(|| self.disturbance.complaint())
    }

    /// Whether it has fewer rounds than it was to have.
    pub fn is_short(&self) -> bool {
        self.rounds.len() < self.rounds_wanted as usize
    }

    /// Whether it has one round where several would show how far rounds differ: such a figure is not proven quiet.
    pub fn is_unproven(&self) -> bool {
        self.rounds.len() == 1 && !self.definition.is_once
    }

    /// Whether noise leaves it open on which side of its target the figure is: some rounds reach it, some do not.
    pub fn is_open(&self) -> bool {
        let Some(target) = self.definition.target else { return false };
        let reached = self.rounds.iter().filter(|round| target.reached(**round)).count();
        self.noise().is_some() && reached != 0 && reached != self.rounds.len()
    }
}

/// The middle value; of an even number the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// The figures that a run is to measure, and those that it has measured, in the order in which it first did.
#[derive(Debug)]
pub struct Figures {
    wanted: Vec<&'static Definition>,
    /// Rounds of each figure that is not measured once.
    pub rounds_wanted: u32,
    measured: Vec<Figure>,
}

impl Figures {
    /// The figures `wanted`, none of them measured yet, with `rounds_wanted` rounds of each to come.
    pub fn new(wanted: Vec<&'static Definition>, rounds_wanted: u32) -> Self {
        Self { wanted, rounds_wanted, measured: Vec::new() }
    }

    /// Takes in one round of a figure.
    pub fn add(&mut self, definition: &'static Definition, value: f64, disturbance: Disturbance) {
        if let Some(figure) = self.measured.iter_mut().find(|figure| figure.definition == definition) {
            figure.rounds.push(value);
            figure.disturbance = figure.disturbance.with(disturbance);
        } else {
            let rounds_wanted = if definition.is_once { 1 } else { self.rounds_wanted };
            self.measured.push(Figure { definition, rounds: vec![value], rounds_wanted, disturbance });
        }
    }

    /// The median of a figure's rounds; not a number when it was not measured.
    pub fn value(&self, definition: &'static Definition) -> f64 {
        self.measured.iter().find(|figure| figure.definition == definition).map_or(f64::NAN, Figure::value)
    }

    /// Those with a target first, otherwise as measured.
    pub fn in_order(&self) -> Vec<&Figure> {
        let (judged, told): (Vec<_>, Vec<_>) =
            self.measured.iter().partition(|figure| figure.definition.target.is_some());
        judged.into_iter().chain(told).collect()
    }

    /// How many of those measured are as `is_such` says.
    pub fn count(&self, is_such: fn(&Figure) -> bool) -> usize {
        self.measured.iter().filter(|figure| is_such(figure)).count()
    }

    /// The figures without any round.
    pub fn missing(&self) -> Vec<&'static Definition> {
        let is_missing =
            |wanted: &&'static Definition| self.measured.iter().all(|figure| figure.definition != *wanted);
        self.wanted.iter().copied().filter(is_missing).collect()
    }
}
