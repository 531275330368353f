//! All output of the commands: answers to standard output, everything else to standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use serde_json::Value;

/// Prints `value` as JSON, or else as `text`.
///
/// # Errors
/// If standard output cannot be written, for example on a full disk. A closed pipe, as in `… | head -1`, is
/// not an error: the reader has all it needs.
pub fn show<E: From<io::Error>>(json: bool, value: &Value, text: impl FnOnce() -> String) -> Result<(), E> {
    Ok(if json { print_json(value) } else { print(&text()) }?)
}

/// Prints `value` for programs to read.
pub fn print_json(value: &Value) -> io::Result<()> {
    print(&format_args!("{value:#}"))
}

/// Prints `text`, which may end with a line end.
pub fn print_text(text: &str) -> io::Result<()> {
    print(&text.trim_end_matches('\n'))
}

/// Prints `value` as one line of JSON; returns `false` if the reader has closed the pipe.
pub fn print_line(value: &Value) -> io::Result<bool> {
    write_out(value)
}

/// Prints a message or an error on standard error. If that fails, there is nowhere else to report it.
pub fn say(text: &dyn Display) {
    let _ = writeln!(io::stderr(), "claimgate: {text}");
}

/// Prints lines on standard error that a question refers to.
pub fn print_before_question(lines: &dyn Display) {
    let _ = writeln!(io::stderr(), "{lines}");
}

/// Prints a prompt on standard error, which is a terminal, without a line end.
pub fn prompt(text: &dyn Display) {
    let mut terminal = io::stderr();
    let _ = write!(terminal, "claimgate: {text}").and_then(|()| terminal.flush());
}

/// Replaces the last line of standard error, which is a terminal, by `text`.
pub fn progress(text: &dyn Display) {
    let mut terminal = io::stderr();
    let _ = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
}

fn print(answer: &dyn Display) -> io::Result<()> {
    write_out(answer).map(drop)
}

/// Writes `answer` to standard output; returns `false` if the reader has closed the pipe.
fn write_out(answer: &dyn Display) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{answer}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
