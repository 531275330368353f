//! Latency of the responses.

use std::time::Duration;

use serde::Serialize;

/// Upper bounds of the bars, in milliseconds; a last bar counts slower responses.
const BARS_MS: [u32; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

/// The latency of each response, in microseconds. A drill has few enough responses to keep them all.
#[derive(Debug, Default)]
pub(crate) struct Latency(Vec<u32>);

impl Latency {
    /// Records a response; a latency beyond the range of `u32` (about an hour) is capped.
    pub(crate) fn record(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    /// Returns the figures for the report; `None` if there were no responses.
    pub(crate) fn figures(&self) -> Option<LatencyFigures> {
        let mut us = self.0.clone();
        us.sort_unstable();
        // The quantile in thousandths, so that the rank is computed in whole numbers.
        let at = |thousandths: usize| {
            let rank = (us.len() * thousandths).div_ceil(1000);
            us.get(rank.saturating_sub(1)).copied().map(ms)
        };
        Some(LatencyFigures {
            answers: us.len(),
            p50: at(500)?,
            p90: at(900)?,
            p99: at(990)?,
            p99_9: at(999)?,
            max: at(1000)?,
            bars: bars(&us),
        })
    }
}

/// Returns the bars from the first to the last with any responses; `us` is sorted.
fn bars(us: &[u32]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let (mut over_ms, mut below) = (0, 0);
    for up_to_ms in BARS_MS.map(Some).into_iter().chain([None]) {
        let within = us.partition_point(|us| up_to_ms.is_none_or(|bound| *us <= bound * 1000));
        bars.push(Bar { over_ms, up_to_ms, answers: within - below });
        (over_ms, below) = (up_to_ms.unwrap_or_default(), within);
    }
    let is_empty = |bar: &Bar| bar.answers == 0;
    bars.truncate(bars.iter().rposition(|bar| !is_empty(bar)).map_or(0, |last| last + 1));
    bars.into_iter().skip_while(is_empty).collect()
}

fn ms(us: u32) -> f64 {
    f64::from(us) / 1000.0
}

/// Latency in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyFigures {
    /// The number of responses.
    pub answers: usize,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p99_9: f64,
    /// The slowest response.
    pub max: f64,
    /// The distribution.
    pub bars: Vec<Bar>,
}

/// The responses within a range of latency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bar {
    /// Exclusive lower bound, in milliseconds.
    pub over_ms: u32,
    /// Inclusive upper bound, in milliseconds; `None` for the slowest.
    pub up_to_ms: Option<u32>,
    /// The number of responses.
    pub answers: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_counted_in_exactly_one_bar() {
        let mut latency = Latency::default();
        for ms in [3, 400, 7, 3, 90_000] {
            latency.record(Duration::from_millis(ms));
        }
        let figures = latency.figures().unwrap();
        assert_eq!(figures.bars.iter().map(|bar| bar.answers).sum::<usize>(), figures.answers);
        assert_eq!(figures.bars[0], Bar { over_ms: 2, up_to_ms: Some(5), answers: 2 });
        assert_eq!(figures.bars.last(), Some(&Bar { over_ms: 10_000, up_to_ms: None, answers: 1 }));
        assert_eq!(format!("{} {} {}", figures.p50, figures.p90, figures.max), "7 90000 90000");
    }

    #[test]
    fn p99_ignores_the_slowest_of_a_hundred_answers() {
        let mut latency = Latency::default();
        for ms in 1..=100 {
            latency.record(Duration::from_millis(ms));
        }
        let figures = latency.figures().unwrap();
        assert_eq!(format!("{} {} {}", figures.p50, figures.p99, figures.p99_9), "50 99 100");
    }

    #[test]
    fn without_an_answer_there_are_no_figures() {
        assert!(Latency::default().figures().is_none());
    }
}
