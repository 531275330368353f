//! Cost of the log for claims: as shipped, and with a line for each request. A thread of this process reads the log, as
//! a journal does.

use std::io;
use std::thread;

use support::CoreOptions;

use super::Group;
use super::http::length;
use crate::budget::Cost;
use crate::client::Pace;
use crate::figures::{Definition, Unit};
use crate::processor::thread_seconds;
use crate::server::Server;
use crate::session::Session;

pub const GROUP: Group = Group {
    name: "log",
    about: "claims over HTTP without a log, with it, with a line for each request, and without it again",
    figures: &[RATIO, NOISE, REQUESTS_RATIO, WITHOUT, CPU],
    parts: &[Cost::of(1.0, 0.5, 2.5)],
    run: |session| Box::pin(run(session)),
};

const RATIO: &Definition = &Definition::at_least("claims with the log ÷ without", Unit::Ratio, 0.95);
/// Both cores are without a log: the noise of the other ratios.
const NOISE: &Definition = &Definition::info("claims without a log ÷ without, noise", Unit::Ratio);
const REQUESTS_RATIO: &Definition =
    &Definition::info("claims with a line for each request ÷ without", Unit::Ratio);
const WITHOUT: &Definition = &Definition::info("claims without a log", Unit::PerSecond);
const CPU: &Definition =
    &Definition::info("CPU per claim, log's thread, a line for each request", Unit::CpuMicroseconds);

/// `RUST_LOG` for a line for each request (docs/operations.md).
const EACH_REQUEST: &str = "info,sqlx=warn,claimgate_core::http=debug";
/// Name of core's thread that writes the log.
const LOG_THREAD: &str = "log";

async fn run(session: &mut Session) -> anyhow::Result<()> {
    let mut servers = [
        start(Some("off"), "without a log").await?,
        start(None, "with the log").await?,
        start(Some(EACH_REQUEST), "with a line for each request").await?,
        start(Some("off"), "without a log, again").await?,
    ];
    while let Some(round) = session.next_round() {
        session.begin_round();
        let [without, log, requests, again] = &mut servers;
        let without = measure(session, without).await?.rate;
        let log = measure(session, log).await?.rate;
        let requests = measure(session, requests).await?;
        let again = measure(session, again).await?.rate;
        let lost: Option<u64> = servers[2].core.metric("claimgate_log_lines_lost_total").await;
        session.say(format_args!(
            "round {round} · {without:.0} claims/s without a log, {log:.0} with it, {:.0} with a line for each request \
             (lost so far: {}), {again:.0} without it again",
            requests.rate,
            lost.unwrap_or_default()
        ));
        let baseline = f64::midpoint(without, again);
        session.add(RATIO, log / baseline);
        session.add(NOISE, again / without);
        session.add(REQUESTS_RATIO, requests.rate / baseline);
        session.add(WITHOUT, baseline);
        session.add(CPU, requests.log_us);
    }
    Ok(())
}

/// Starts a core that logs to a pipe, with `level` as `RUST_LOG`; `None` is core's default.
async fn start(level: Option<&str>, name: &str) -> anyhow::Result<Server> {
    let (mut reader, writer) = io::pipe()?;
    thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
    let options = CoreOptions::default().log_to(writer);
    let options = match level {
        Some(level) => options.with("RUST_LOG", level),
        None => options,
    };
    Ok(Server::start_with_options(options, name).await)
}

/// The measured claims of one core.
#[derive(Debug)]
struct Measured {
    /// Claims per second.
    rate: f64,
    /// Microseconds of CPU time of the log's thread per claim.
    log_us: f64,
}

async fn measure(session: &mut Session, server: &mut Server) -> anyhow::Result<Measured> {
    // Half the length each: there are four cores.
    let (connections, pace) = (session.options.connections, Pace::Closed(length(session) / 2));
    let before = thread_seconds(server.core.pid(), LOG_THREAD);
    let tally = server.claims(session, connections, pace).await?.tally;
    let seconds = thread_seconds(server.core.pid(), LOG_THREAD) - before;
    Ok(Measured { rate: tally.per_second(), log_us: seconds * 1e6 / tally.granted()? as f64 })
}
