//! The arguments of every command that calls core.

use clap::Args;
use url::Url;

use crate::config::DataArgs;

/// The arguments of every command that calls core.
#[derive(Debug, Clone, Args)]
pub struct CallArgs {
    /// Print the answer as JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Address of core's internal API
    #[arg(
        long,
        env = "CLAIMGATE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "HOST:PORT",
        value_parser = host_and_port,
        global = true
    )]
    pub(super) listen: String,
    /// Address of core's admin API
    #[arg(
        long,
        env = "CLAIMGATE_ADMIN_LISTEN",
        default_value = "127.0.0.1:8081",
        value_name = "HOST:PORT",
        value_parser = host_and_port,
        global = true
    )]
    pub(super) admin_listen: String,
    #[command(flatten)]
    pub(super) data: DataArgs,
}

/// Accepts `text` if it is just a host and a port.
fn host_and_port(text: &str) -> Result<String, &'static str> {
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let is_host = Url::parse(&format!("http://{text}")).is_ok_and(|_| !text.contains(['/', '?', '#', '@']));
    if has_port && is_host {
        Ok(text.to_owned())
    } else {
        Err("must be HOST:PORT, such as 127.0.0.1:8081, without http:// and without a path")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for good in ["127.0.0.1:8081", "localhost:80", "core.internal:8081", "[::1]:8081", "0.0.0.0:1"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "8081",
            ":8081",
            "127.0.0.1",
            "http://127.0.0.1:8081",
            "127.0.0.1:8081/",
            "127.0.0.1:x",
            "::1",
            "u@h:1",
            "h:1?x",
            "127.0.0.1:65536",
        ] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }
}
