//! The addresses of the cores: `CORE_URL`, or `CORES` and the service bindings.

use crate::variables::{ConfigError, is_origin};

/// Maximum number of cores. For more cores, use a load balancer.
const CORES_MAX: usize = 8;
/// The first core's service binding. The other bindings are `CORE_2`, `CORE_3` and so on.
const CORE_BINDING: &str = "CORE";

/// The address of a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreAddress {
    /// The origin of the core's internal API, without a trailing slash. With a service binding, the host is ignored.
    pub origin: String,
    /// The core's service binding; `None` means over the network.
    pub binding: Option<String>,
}

/// Reads the cores' addresses: the service bindings if `CORE` exists, otherwise `CORE_URL`.
pub(super) fn read(
    variable: impl Fn(&str) -> Option<String>,
    is_bound: impl Fn(&str) -> bool,
) -> Result<Vec<CoreAddress>, ConfigError> {
    if is_bound(CORE_BINDING) { bound_cores(variable, is_bound) } else { core_urls(variable) }
}

fn core_urls(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<CoreAddress>, ConfigError> {
    const NAME: &str = "CORE_URL";
    let list = variable(NAME).ok_or_else(|| ConfigError::new(NAME, "is not set"))?;
    let mut cores: Vec<CoreAddress> = Vec::new();
    for text in list.split(',').map(str::trim) {
        let origin = text.strip_suffix('/').unwrap_or(text);
        // The signature covers the path as core sees it, so a URL with a path prefix would not work.
        if !is_origin(origin) {
            let form = "must be http(s)://host[:port] without a path, such as http://127.0.0.1:8080, or a comma-separated list";
            return Err(ConfigError::new(NAME, form));
        }
        if cores.iter().any(|core| core.origin == origin) {
            return Err(ConfigError::new(NAME, format!("lists {origin} twice")));
        }
        cores.push(CoreAddress { origin: origin.to_owned(), binding: None });
    }
    if cores.len() > CORES_MAX {
        return Err(ConfigError::new(NAME, format!("must list at most {CORES_MAX} cores")));
    }
    Ok(cores)
}

fn bound_cores(
    variable: impl Fn(&str) -> Option<String>,
    is_bound: impl Fn(&str) -> bool,
) -> Result<Vec<CoreAddress>, ConfigError> {
    const NAME: &str = "CORES";
    let count = match variable(NAME).as_deref() {
        None => 1,
        Some(text) => text
            .parse()
            .ok()
            .filter(|count| (1..=CORES_MAX).contains(count))
            .ok_or_else(|| ConfigError::new(NAME, format!("must be 1 to {CORES_MAX}")))?,
    };
    let address = |number| {
        let binding = if number == 1 { CORE_BINDING.to_owned() } else { format!("{CORE_BINDING}_{number}") };
        if !is_bound(&binding) {
            return Err(ConfigError::new(NAME, format!("is {count}, but there is no binding {binding}")));
        }
        // Requests through a binding need a URL too.
        Ok(CoreAddress { origin: format!("http://core-{number}"), binding: Some(binding) })
    };
    (1..=count).map(address).collect()
}
