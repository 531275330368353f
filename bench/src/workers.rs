//! Claimgate's Worker and a bare one, in one process of plain workerd before a core.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use support::core_process::Core;
use support::edge::{Leashed, emptied, root};
use support::process::free_address;
use support::{eventually, wait::holds};

const READY: Duration = Duration::from_secs(30);

/// The running process.
#[derive(Debug)]
pub struct Workers {
    /// Where claimgate's Worker listens.
    pub edge: SocketAddr,
    /// Where the bare one does.
    pub bare: SocketAddr,
    _process: Leashed,
}

impl Workers {
    /// Starts both before `core`.
    pub async fn start(core: &Core) -> Self {
        let (edge, bare) = (free_address(), free_address());
        let directory = emptied("bench-workers");
        let mut workerd = Command::new(root().join("node_modules/.bin/workerd"));
        workerd
            .arg("serve")
            .arg(root().join("bench/workers.capnp"))
            .arg(format!("--socket-addr=edge={edge}"))
            .arg(format!("--socket-addr=bare={bare}"))
            .arg(format!("--external-addr=core={}", core.listen()))
            // Asked as ever, but never refusing.
            .env("RATE_PER_ADDRESS_LIMIT", "0")
            .env("RATE_PER_USER_LIMIT", "0")
            .env("EDGE_KEY", core.data_file("edge.key"))
            .env("USER_JWT_KEY", core.data_file("user-jwt.key"));
        let process = Leashed::start(&workerd, &directory.join("workerd.log"), &directory.join("state"));
        for url in [format!("http://{edge}/livez"), format!("http://{bare}/")] {
            eventually(READY, || async {
                let reply = core.client().try_get(&url, "").await;
                holds(matches!(&reply, Ok(reply) if reply.status == 200), || format!("{url}: {reply:?}"))
            })
            .await;
        }
        Self { edge, bare, _process: process }
    }
}
