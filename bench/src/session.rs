//! One run of the benchmark: its options, its figures, its watch over the machine, its voice.

use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;

use crate::budget::Budget;
use crate::figures::{Definition, Figures};
use crate::machine::{self, Disturbance, Usage};

/// How often histograms are folded, as core does it.
const UPKEEP: Duration = Duration::from_secs(1);

/// Sizes of a load.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seconds of one measurement.
    pub seconds: f64,
    /// Connections of the HTTP load.
    pub connections: usize,
}

/// What all groups share.
#[derive(Debug)]
pub struct Session {
    /// Sizes of its loads.
    pub options: Options,
    /// What was found.
    pub figures: Figures,
    /// Metrics of what of core runs in this process.
    pub metrics: PrometheusHandle,
    /// The top rate of claims over HTTP, per second, once it was measured.
    pub top_rate: Option<f64>,
    /// Why the run proves nothing, if it does not.
    pub void: Option<String>,
    /// Why the run ended before everything was measured, if it did.
    pub ended_early: Option<String>,
    /// Over the whole run.
    pub disturbance: Disturbance,
    budget: Budget,
    round: Disturbance,
    started: Instant,
    seed: u64,
}

impl Session {
    /// A run that began at `started` and is to measure `figures`.
    pub fn new(
        options: Options,
        figures: Figures,
        budget: Budget,
        metrics: PrometheusHandle,
        started: Instant,
    ) -> Self {
        let upkeep = metrics.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        Self {
            options,
            figures,
            metrics,
            top_rate: None,
            void: None,
            ended_early: None,
            disturbance: Disturbance::NONE,
            budget,
            round: Disturbance::NONE,
            started,
            seed: 0,
        }
    }

    /// A seed that no measurement of this run has had.
    pub fn seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    /// The next round of the present part of a group, counted from 1; `None` ends the part. Every part asks until then.
    pub fn next_round(&mut self) -> Option<u32> {
        self.budget.next_round(self.started.elapsed().as_secs_f64())
    }

    /// Begins a round: figures added from here on answer for what the machine does from here on.
    pub fn begin_round(&mut self) {
        self.round = Disturbance::NONE;
    }

    /// Runs one measurement between two looks at the machine.
    pub async fn measure<T>(&mut self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let before = machine::calibrate();
        let usage = Usage::now();
        let result = work.await?;
        let (others, stolen) = usage.others_since();
        let disturbance =
            Disturbance { calibration_min_ms: before, calibration_max_ms: before, others, stolen };
        self.round = self.round.with(disturbance);
        self.disturbance = self.disturbance.with(disturbance);
        Ok(result)
    }

    /// Takes in one round of a figure.
    pub fn add(&mut self, definition: &'static Definition, value: f64) {
        self.figures.add(definition, value, self.round);
    }

    /// A line of progress.
    #[allow(clippy::print_stderr)] // the benchmark's own voice
    pub fn say(&self, line: impl Display) {
        let seconds = self.started.elapsed().as_secs();
        eprintln!("[{}:{:02}] {line}", seconds / 60, seconds % 60);
    }
}
