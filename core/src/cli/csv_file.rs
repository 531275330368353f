//! CSV files that commands send to core.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use claimgate_client::Answer;
use claimgate_shared::http;
use tokio::time::interval;

use super::client::CallError;
use super::input;
use super::printer::progress;

const BYTES_PER_MB: f64 = 1e6;

/// A file's content.
#[derive(Debug)]
pub struct CsvFile(pub Vec<u8>);

impl CsvFile {
    /// Reads a file of at most the size that core accepts; `-` is standard input. `split` says how to split a
    /// larger one.
    pub fn read(path: &Path, split: &str) -> Result<Self, CallError> {
        let too_large = format!("is larger than 256 MiB; {split}");
        Ok(Self(input::read(path, http::IMPORT_BYTES_MAX, &too_large)?))
    }

    /// Returns the size in MB.
    #[allow(clippy::cast_precision_loss)] // to a tenth of a megabyte
    pub fn megabytes(&self) -> f64 {
        self.0.len() as f64 / BYTES_PER_MB
    }
}

/// Waits for `answer`. During the wait a terminal shows `doing`, the size and the elapsed time.
pub async fn with_progress<T>(
    doing: &str,
    megabytes: f64,
    answer: impl Future<Output = Result<Answer<T>, CallError>>,
) -> Result<Answer<T>, CallError> {
    let mut answer = std::pin::pin!(answer);
    if !std::io::stderr().is_terminal() {
        return answer.await;
    }
    let (started, mut seconds) = (Instant::now(), interval(Duration::from_secs(1)));
    loop {
        tokio::select! {
            answer = &mut answer => {
                progress(&"");
                return answer;
            }
            _ = seconds.tick() => {
                progress(&format_args!("claimgate: {doing} {megabytes:.1} MB, {} s", started.elapsed().as_secs()));
            }
        }
    }
}
