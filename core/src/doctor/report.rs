//! What was found, and how bad it is.

use std::fmt;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A guarantee does not hold.
    Breaks,
    /// All guarantees hold, but the set-up has an avoidable risk.
    Warning,
}

/// One finding: a problem and its remedy.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The check's stable name, such as `redis.appendonly`.
    pub check: &'static str,
    /// What is wrong, and its consequence.
    pub problem: String,
    /// What to do.
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

    /// The same finding, of the server `name`.
    pub(super) fn of(self, name: &str) -> Self {
        Self { problem: format!("{name}: {}", self.problem), ..self }
    }

    /// A value of the configuration with which `serve` would not start.
    pub fn of_configuration(error: &impl fmt::Display) -> Self {
        Self::breaks("configuration", error.to_string(), "correct it: core does not start with it")
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
    /// What could not be checked, where that is no fault.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether a guarantee does not hold.
    pub fn breaks(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Breaks)
    }
}
