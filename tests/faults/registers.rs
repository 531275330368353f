//! A Redis and a database that do not belong together: replaced, restored, or of another installation.

use serde_json::json;
use support::inspect::key;
use support::process::Process;
