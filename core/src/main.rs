//! The `claimgate` binary: `serve` runs core, everything else talks to a running one.

use std::process::ExitCode;

use claimgate_core::cli::Cli;
use clap::Parser as _;

fn main() -> ExitCode {
    Cli::parse().run()
}
