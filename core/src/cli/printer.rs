//! The one place where commands write: answers to standard output, all else to standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use serde_json::Value;

/// Prints `value` as JSON, or what `text` makes of it.
///
/// # Errors
/// When standard output cannot be written, say on a full disk. A reader that has gone, as in `… | head -1`, is no error:
/// it has all it wanted.
pub fn show(json: bool, value: &Value, text: impl FnOnce() -> String) -> io::Result<()> {
    if json { print_json(value) } else { print(&text()) }
}

/// Prints `value` for programs to read.
///
/// # Errors
/// As [`show`].
pub fn print_json(value: &Value) -> io::Result<()> {
    print(&format_args!("{value:#}"))
}

/// Prints `value` as one line of JSON; `false` when the reader has gone.
///
/// # Errors
/// As [`show`].
pub fn print_line(value: &Value) -> io::Result<bool> {
    write_out(value)
}

/// Says on standard error what takes a while, or went wrong. If that cannot be written, there is no other place to say so.
pub fn say(text: &dyn Display) {
    let _ = writeln!(io::stderr(), "claimgate: {text}");
}

/// Writes `text` over the last line of standard error, which is a terminal; the next text takes its place.
pub fn progress(text: &dyn Display) {
    let mut terminal = io::stderr();
    let _ = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
}

fn print(answer: &dyn Display) -> io::Result<()> {
    write_out(answer).map(drop)
}

/// Writes `answer` to standard output; `false` when the reader has gone.
fn write_out(answer: &dyn Display) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{answer}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
