//! Findings and their severity.

use std::fmt;

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A guarantee does not hold.
    Breaks,
    /// A part of the set-up did not answer, so it is unknown whether all guarantees hold.
    Unknown,
    /// All guarantees hold, but the set-up has an avoidable risk.
    Warning,
}

/// One finding: a problem and its remedy.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The check's stable name, such as `redis.appendonly`.
    pub check: &'static str,
    /// The problem and its consequence.
    pub problem: String,
    /// The recommended action.
    pub remedy: String,
}

impl Finding {
    pub(super) fn breaks(check: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Breaks, check, problem: problem.into(), remedy: remedy.into() }
    }

    pub(super) fn warning(
        check: &'static str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Warning, check, problem: problem.into(), remedy: remedy.into() }
    }

    /// Creates a finding about a part of the set-up that did not answer.
    pub fn unknown(check: &'static str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Unknown, check, problem: problem.into(), remedy: remedy.into() }
    }

    /// Adds the name of the server that the finding is about.
    pub(super) fn of_server(self, name: &str) -> Self {
        Self { problem: format!("{name}: {}", self.problem), ..self }
    }

    /// Creates a finding about a configuration value with which `serve` would not start.
    pub fn of_configuration(error: &impl fmt::Display) -> Self {
        Self::breaks("configuration", error.to_string(), "correct it: core does not start with this value")
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

/// All findings.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
    /// Parts that could not be checked for a harmless reason.
    pub notes: Vec<String>,
    /// Parts that were checked.
    pub examined: Vec<String>,
}

impl Report {
    /// Returns whether there is a finding of this severity.
    pub fn has(&self, severity: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity == severity)
    }

    /// Adds a checked part and its findings.
    pub(super) fn add(&mut self, part: impl Into<String>, findings: impl IntoIterator<Item = Finding>) {
        self.examined.push(part.into());
        self.findings.extend(findings);
    }
}
