//! Settings of traces: where they are sent, and how many.

use clap::Args;

use super::{ConfigError, trimmed, wrong};

/// The default share of traced requests among those without a trace context.
const RATIO_DEFAULT: f64 = 0.01;

/// The flags of `serve` for traces.
#[derive(Debug, Clone, Args)]
pub(super) struct TraceArgs {
    /// Send traces to this OpenTelemetry collector, by OTLP over HTTP: http://HOST:PORT [default: no traces]
    #[arg(long, env = "CLAIMGATE_OTLP_URL", value_name = "URL")]
    otlp_url: Option<String>,
    /// Share of requests traced among those without a traceparent from their caller, 0 to 1
    /// [default: 0.01]
    #[arg(long, env = "CLAIMGATE_TRACE_RATIO", value_name = "SHARE")]
    trace_ratio: Option<String>,
}

/// The collector of traces.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceTarget {
    /// The collector's address for traces.
    pub url: String,
    /// The share of traced requests among those without a trace context, 0 to 1.
    pub ratio: f64,
}

impl TraceArgs {
    /// Returns where traces are sent; `None` for no traces.
    pub(super) fn target(&self) -> Result<Option<TraceTarget>, ConfigError> {
        let ratio = self.trace_ratio.as_deref().map_or(Ok(RATIO_DEFAULT), ratio)?;
        let Some(url) = self.otlp_url.as_deref().map(trimmed) else { return Ok(None) };
        let (_, host) = url.split_once("http://").filter(|(before, _)| before.is_empty()).unwrap_or_default();
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '?', '#', '@']) {
            return Err(wrong(
                "CLAIMGATE_OTLP_URL",
                format!(
                    "must be http://HOST:PORT, such as http://127.0.0.1:4318, not '{url}'; for TLS, run a collector \
                     beside core that forwards the traces"
                ),
            ));
        }
        Ok(Some(TraceTarget { url: format!("http://{host}/v1/traces"), ratio }))
    }
}

fn ratio(text: &str) -> Result<f64, ConfigError> {
    let ratio = trimmed(text).parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| wrong("CLAIMGATE_TRACE_RATIO", format!("must be 0 to 1, such as 0.01, not '{text}'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: Option<&str>, ratio: Option<&str>) -> Result<Option<TraceTarget>, String> {
        let args = TraceArgs { otlp_url: url.map(str::to_owned), trace_ratio: ratio.map(str::to_owned) };
        args.target().map_err(|error| error.to_string())
    }

    #[test]
    fn a_collectors_address_is_a_host_and_a_port() {
        let of = |url: &str, ratio| Ok(Some(TraceTarget { url: url.to_owned(), ratio }));
        assert_eq!(target(None, None), Ok(None));
        assert_eq!(target(Some("http://c:4318"), None), of("http://c:4318/v1/traces", 0.01));
        assert_eq!(target(Some("http://c:4318/"), Some("1")), of("http://c:4318/v1/traces", 1.0));
        for bad in ["https://c:4318", "c:4318", "http://", "http://c/v1/traces", "http://u:p@c", "xhttp://c"]
        {
            assert!(target(Some(bad), None).unwrap_err().contains("CLAIMGATE_OTLP_URL"), "{bad}");
        }
        for bad in ["2", "-0.1", "all", "NaN"] {
            assert!(target(None, Some(bad)).unwrap_err().contains("CLAIMGATE_TRACE_RATIO"), "{bad}");
        }
    }
}
