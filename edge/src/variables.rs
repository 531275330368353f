//! Reading of variables: errors that name them, and checks that several settings share.

use std::fmt::{self, Display};
use std::str::FromStr;

/// A missing or invalid variable; for the log, never for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct ConfigError {
    variable: &'static str,
    problem: String,
}

impl ConfigError {
    pub(crate) fn new(variable: &'static str, problem: impl Display) -> Self {
        Self { variable, problem: problem.to_string() }
    }
}

/// All missing or invalid variables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl ConfigErrors {
    /// Returns the names of the variables, without values.
    pub fn variables(&self) -> Vec<&'static str> {
        self.0.iter().map(|error| error.variable).collect()
    }

    /// Returns the value, or collects the error and returns `None`.
    pub(crate) fn keep<T>(&mut self, read: Result<T, ConfigError>) -> Option<T> {
        read.map_err(|error| self.0.push(error)).ok()
    }
}

/// Parses the required variable `name`. The error must not contain the value.
pub(crate) fn secret<T: FromStr<Err: Display>>(
    variable: impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<T, ConfigError> {
    let text = variable(name).ok_or_else(|| ConfigError::new(name, "is not set"))?;
    text.parse().map_err(|why| ConfigError::new(name, why))
}

/// Returns whether `name` is a header's name, of the characters that all proxies accept.
pub(crate) fn is_header_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Returns whether `text` is `http(s)://host[:port]`, without a path.
pub(crate) fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte))
    })
}
