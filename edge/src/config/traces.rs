//! The settings of traces: `OTLP_URL` and `TRACE_RATIO`.

use crate::variables::{ConfigError, is_origin};

/// 1 % of all requests.
const TRACE_PER_MILLION: u32 = 10_000;

/// Trace settings: where to send traces, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceConfig {
    /// The collector's URL for traces. With a service binding, the host is ignored.
    pub url: String,
    /// Requests per million that are traced although the browser did not request it.
    pub per_million: u32,
}

/// Reads the settings; `None` disables tracing.
pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<TraceConfig>, ConfigError> {
    const URL: &str = "OTLP_URL";
    const RATIO: &str = "TRACE_RATIO";
    let per_million = match variable(RATIO).as_deref() {
        None => TRACE_PER_MILLION,
        Some(text) => {
            parse_ratio(text).ok_or_else(|| ConfigError::new(RATIO, "must be 0 to 1, such as 0.01"))?
        }
    };
    let Some(url) = variable(URL) else { return Ok(None) };
    let origin = url.strip_suffix('/').unwrap_or(&url);
    if !is_origin(origin) {
        return Err(ConfigError::new(
            URL,
            "must be http(s)://host[:port] without a path, such as http://127.0.0.1:4318",
        ));
    }
    Ok(Some(TraceConfig { url: format!("{origin}/v1/traces"), per_million }))
}

/// Parses a ratio from 0 to 1, with at most six decimals, into millionths. The standard floating-point parser
/// would add 5 % to the Worker's size.
fn parse_ratio(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if decimals.is_empty() || decimals.len() > 6 {
        return None;
    }
    let digit = |at| decimals.chars().nth(at).map_or(Some(0), |digit| digit.to_digit(10));
    let millionths = (0..6).try_fold(0, |number, at| Some(number * 10 + digit(at)?))?;
    match whole {
        "0" => Some(millionths),
        "1" if millionths == 0 => Some(1_000_000),
        _ => None,
    }
}
