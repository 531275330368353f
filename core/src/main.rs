//! The `claimgate` binary: `serve` runs core, most other commands talk to a running core.

use std::process::ExitCode;

use claimgate_core::cli::Cli;
use mimalloc::MiMalloc;

/// A claim needs about forty small allocations; this allocator takes half as long for them.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    Cli::read().run()
}
