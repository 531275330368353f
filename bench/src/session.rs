//! One run of the benchmark: its options, figures, budget, noise and output.

use std::fmt::Display;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusHandle;

use crate::budget::Budget;
use crate::client::{Load, Pace, Template};
use crate::figures::{Definition, Figures};
use crate::machine::{self, Disturbance, Usage};

/// Interval of the histograms' upkeep, as in core.
const UPKEEP: Duration = Duration::from_secs(1);

/// Sizes of a load.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seconds of one measurement.
    pub seconds: f64,
    /// Connections of the HTTP load.
    pub connections: usize,
}

/// State that all groups share.
#[derive(Debug)]
pub struct Session {
    /// Sizes of the loads.
    pub options: Options,
    /// The measured figures.
    pub figures: Figures,
    /// Metrics of the parts of core that run in this process.
    pub metrics: PrometheusHandle,
    /// Top rate of claims over HTTP per second, once measured.
    pub top_rate: Option<f64>,
    /// Why the run is invalid, if it is.
    pub void: Option<String>,
    /// Why the run ended early, if it did.
    pub ended_early: Option<String>,
    /// The groups that failed, and why. They have no figures.
    pub failed: Vec<String>,
    /// Disturbance during the whole run.
    pub disturbance: Disturbance,
    budget: Budget,
    round: Disturbance,
    started: Instant,
    seed: u64,
}

impl Session {
    /// Creates a run that began at `started` and should measure `figures`.
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
            failed: Vec::new(),
            disturbance: Disturbance::NONE,
            budget,
            round: Disturbance::NONE,
            started,
            seed: 0,
        }
    }

    /// Returns a seed that no other measurement of this run uses.
    pub fn seed(&mut self) -> u64 {
        self.seed += 1;
        self.seed
    }

    /// Returns a load with users and keys that no other measurement of this run uses.
    pub fn load(&mut self, address: SocketAddr, connections: usize, request: Template, pace: Pace) -> Load {
        Load { address, connections, request, seed: self.seed(), pace }
    }

    /// Returns the next round of the group's current part, counted from 1; `None` ends the part. Every part
    /// must call this until it returns `None`.
    pub fn next_round(&mut self) -> Option<u32> {
        self.budget.next_round(self.started.elapsed().as_secs_f64())
    }

    /// Records that a group of `figures` failed. `later` is the number of parts of the later groups.
    pub fn fail(&mut self, figures: &[&'static Definition], why: String, later: usize) {
        self.figures.remove(figures);
        self.budget.drop_parts(self.started.elapsed().as_secs_f64(), later);
        self.say(format_args!("FAILED: {why}"));
        self.failed.push(why);
    }

    /// Begins a round: figures added from now on include only disturbances from now on.
    pub fn begin_round(&mut self) {
        self.round = Disturbance::NONE;
    }

    /// Runs one measurement, and samples the machine before and after it.
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

    /// Adds one round of a figure.
    pub fn add(&mut self, definition: &'static Definition, value: f64) {
        self.figures.add(definition, value, self.round);
    }

    /// Prints a line of progress.
    #[allow(clippy::print_stderr)] // the benchmark's output
    pub fn say(&self, line: impl Display) {
        let seconds = self.started.elapsed().as_secs();
        eprintln!("[{}:{:02}] {line}", seconds / 60, seconds % 60);
    }
}
