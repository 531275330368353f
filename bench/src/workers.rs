//! claimgate's Worker and a bare one in one process of plain workerd, connected to a core.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::core_process::Core;
use support::edge::{ProcessGroup, emptied, root};
use support::process::free_address;
use support::{eventually, wait::holds};

const READY: Duration = Duration::from_secs(30);

/// The running workerd process.
#[derive(Debug)]
pub struct Workers {
    /// Address of claimgate's Worker.
    pub edge: SocketAddr,
    /// Address of the bare Worker.
    pub bare: SocketAddr,
    process: ProcessGroup,
}

impl Workers {
    /// Starts both Workers with the given core. `keys` are the settings of users' tokens. Processes that run
    /// at the same time need different names.
    pub async fn start(core: &Core, name: &str, keys: &[(&str, &str)]) -> Self {
        Self::start_at(root(), core, name, keys).await
    }

    /// Starts both Workers like [`Self::start`], with claimgate's Worker of the version in the directory `version`.
    pub async fn start_at(version: &Path, core: &Core, name: &str, keys: &[(&str, &str)]) -> Self {
        let (edge, bare) = (free_address(), free_address());
        let directory = emptied(&format!("bench-workers-{name}"));
        let mut workerd = Command::new(root().join("node_modules/.bin/workerd"));
        workerd
            .arg("serve")
            .arg(version.join("bench/workers.capnp"))
            .arg(format!("--socket-addr=edge={edge}"))
            .arg(format!("--socket-addr=bare={bare}"))
            .arg(format!("--external-addr=core={}", core.listen()))
            // Limiters are called as usual, but never reject.
            .env("RATE_PER_ADDRESS_LIMIT", "0")
            .env("RATE_PER_USER_LIMIT", "0")
            .env("EDGE_KEY", core.data_file("edge.key"))
            .envs(keys.iter().copied());
        let process = ProcessGroup::start(&workerd, &directory.join("workerd.log"), &directory.join("state"));
        for url in [format!("http://{edge}/livez"), format!("http://{bare}/")] {
            eventually(READY, || async {
                let reply = core.client().try_get(&url, "").await;
                holds(matches!(&reply, Ok(reply) if reply.status == 200), || format!("{url}: {reply:?}"))
            })
            .await;
        }
        Self { edge, bare, process }
    }

    /// Returns the process id of workerd.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}
