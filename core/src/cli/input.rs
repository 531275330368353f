//! Files that commands read; `-` is standard input.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::client::CallError;

/// Returns the name of a file for messages.
pub fn name_of(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads a file of at most `bytes_max` bytes. `too_large` says what is wrong with a larger one.
pub fn read(path: &Path, bytes_max: usize, too_large: &str) -> Result<Vec<u8>, CallError> {
    let wrong = |why: &dyn Display| CallError::Usage(format!("{}: {why}", name_of(path)));
    let source: Box<dyn Read> = if is_stdin(path) {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(|error| wrong(&error))?)
    };
    let mut content = Vec::new();
    source.take(bytes_max as u64 + 1).read_to_end(&mut content).map_err(|error| wrong(&error))?;
    if content.len() > bytes_max { Err(wrong(&too_large)) } else { Ok(content) }
}
