//! Signals whose handling core inherits, or whose default handling ends core.

use std::io;

use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Signals that need a handler, even one that does nothing. If core's parent ignores SIGCHLD, so does core, and the
/// kernel keeps no exit status of a child: core could neither start its Redis nor notice its death. SIGXFSZ, sent at
/// a file's size limit (`ulimit -f`), ends a process by default; with a handler, only the write fails.
const HANDLED: [Signal; 2] = [Signal::CHILD, Signal::XFSZ];

/// Installs a handler that does nothing for each signal of [`HANDLED`]. The handlers last as long as the process, and
/// processes that core starts do not inherit them.
///
/// # Errors
/// If the system refuses a handler.
pub fn install_handlers(runtime: &Runtime) -> io::Result<()> {
    let _entered = runtime.enter();
    HANDLED.iter().try_for_each(|handled| signal(SignalKind::from_raw(handled.as_raw())).map(drop))
}
