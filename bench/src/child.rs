//! Runs this program as a baseline server, in a separate process.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::Context as _;
use support::process::{Process, command, free_address};
use support::{SOON, eventually};
use tokio::net::TcpStream;

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct Child {
    /// Address that the server listens on.
    pub address: SocketAddr,
    process: Process,
}

impl Child {
    /// Starts the subcommand `name` with `arguments` and waits until it listens.
    pub async fn start(name: &str, arguments: &[&str]) -> anyhow::Result<Self> {
        let address = free_address();
        let mut command = command(&std::env::current_exe().context("the benchmark's own path")?);
        command.arg(name).args(["--listen", &address.to_string()]).args(arguments).stdin(Stdio::null());
        let process = Process::start(command);
        eventually(SOON, || async { TcpStream::connect(address).await.map_err(|error| error.to_string()) })
            .await;
        Ok(Self { address, process })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
