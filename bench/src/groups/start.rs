//! The Worker's start in plain workerd, as shipped.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use support::Core;
use support::edge::{ProcessGroup, emptied, root, tool};
use support::process::free_address;

use super::Group;
use crate::budget::Cost;
use crate::figures::{Definition, Unit};
use crate::median::median;
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "start",
    about: "the Worker's start in workerd, until its first response",
    figures: &[START],
    parts: &[Cost::of(0.5, 1.0, 0.0)],
    run: |session| Box::pin(run(session)),
};

const START: &Definition = &Definition::info("workerd's start until the edge responds", Unit::Microseconds);

/// Number of starts in each round.
const STARTS: usize = 5;
const START_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(1);
const READ_TIMEOUT: Duration = Duration::from_secs(5);

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let core = Core::start().await;
    // The first start only reads the files into the page cache.
    start(&core)?;
    while let Some(round) = session.next_round() {
        session.begin_round();
        let starts: Vec<_> = session.measure(async { (0..STARTS).map(|_| start(&core)).collect() }).await?;
        let start_us = median(&starts);
        session.say(format_args!("round {round} · start of the edge: {:.0} ms", start_us / 1000.0));
        session.add(START, start_us);
    }
    Ok(())
}

/// Starts workerd with the edge's own configuration. Returns the microseconds until the Worker's first response, which
/// includes compiling the Worker and reading its settings.
fn start(core: &Core) -> anyhow::Result<f64> {
    let (edge, directory) = (free_address(), emptied("bench-start"));
    let mut workerd = Command::new(tool("workerd"));
    workerd
        .arg("serve")
        .arg(root().join("edge/workerd.capnp"))
        .arg(format!("--socket-addr=http={edge}"))
        .arg(format!("--external-addr=core={}", core.listen()))
        .env("EDGE_KEY", core.data_file("edge.key"))
        .env("USER_JWT_KEY", core.data_file("user-jwt.key"));
    let began = Instant::now();
    let _process = ProcessGroup::start(&workerd, &directory.join("workerd.log"), &directory.join("state"));
    while !responds(edge)? {
        ensure!(began.elapsed() < START_MAX, "workerd did not respond within {START_MAX:?}");
        std::thread::sleep(POLL);
    }
    Ok(began.elapsed().as_secs_f64() * 1e6)
}

/// Returns false as long as workerd does not listen.
fn responds(edge: SocketAddr) -> anyhow::Result<bool> {
    let Ok(mut stream) = TcpStream::connect(edge) else { return Ok(false) };
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    ensure!(response.starts_with("HTTP/1.1 200"), "the edge is alive, but answered {response:?}");
    Ok(true)
}
