//! The Worker's size, and its start in plain workerd, as shipped.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use support::Core;
use support::edge::{ProcessGroup, emptied, root, tool};
use support::process::free_address;

use super::{Group, previous};
use crate::budget::Cost;
use crate::figures::{Definition, Unit};
use crate::median::median;
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "start",
    about: "the Worker's size, and its start in workerd until its first response",
    figures: &[GROWTH, SIZE, START],
    parts: &[Cost::of(0.5, 1.0, 0.0)],
    run: |session| Box::pin(run(session)),
};

const GROWTH: &Definition =
    &Definition::at_most("the Worker, gzipped, ÷ previous version", Unit::Ratio, 1.1).once();
const SIZE: &Definition = &Definition::info("the Worker, gzipped", Unit::Kilobytes).once();
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
        if round == 1 {
            add_size(session)?;
        }
        let starts: Vec<_> = session.measure(async { (0..STARTS).map(|_| start(&core)).collect() }).await?;
        let start_us = median(&starts);
        session.say(format_args!("round {round} · start of the edge: {:.0} ms", start_us / 1000.0));
        session.add(START, start_us);
    }
    Ok(())
}

/// Adds the Worker's size, and compares it with the previous version's if that was built.
fn add_size(session: &mut Session) -> anyhow::Result<()> {
    let size = size_kb(root())?;
    session.add(SIZE, size);
    if let Some(previous) = previous::directory() {
        session.add(GROWTH, size / size_kb(&previous)?);
    }
    Ok(())
}

/// Returns the upload size of the Worker in the directory `version`, as `scripts/build-worker.sh` computes it.
fn size_kb(version: &Path) -> anyhow::Result<f64> {
    let mut bytes = 0;
    for file in ["index_bg.wasm", "index.js"] {
        let file = version.join("edge/build").join(file);
        let gzip = Command::new("gzip").arg("-9c").arg(&file).output()?;
        ensure!(gzip.status.success(), "gzip cannot read {}", file.display());
        bytes += u32::try_from(gzip.stdout.len())?;
    }
    Ok(f64::from(bytes) / 1000.0)
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
