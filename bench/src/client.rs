//! The HTTP load: a client that uses as little CPU time as possible.
//!
//! One thread, one epoll, keep-alive connections. A request is a fixed-length text whose UUIDs, such as user
//! and key, are overwritten. The client reads only status and length of a response.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use support::core_client::API_TOKEN;

use crate::answer::{self, Response};
use crate::users::{UUID_CHARS, Uuids};

/// Timeout of a response; a slower server has failed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A response to a full batch of claims is about 120 KiB.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
/// At least the system's default: small requests do not need a smaller buffer.
const SEND_BYTES_MIN: usize = 64 * 1024;
const EVENTS_MAX: usize = 256;
/// Maximum number of retries after a 503 in one load; beyond it, the server cannot keep up and the run fails.
const RETRIES_MAX: u64 = 10_000;
/// Upper bound of the histogram, which has three significant digits.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Number of campaigns that requests use round-robin.
pub const TURNS: u64 = 1_000;
/// Number of digits of a turn's number.
const TURN_DIGITS: usize = 3;
/// Marks the timer's events, which have no connection.
const TIMER: u64 = u64::MAX;

#[derive(Debug, Clone)]
pub struct Load {
    /// Address of the server under load.
    pub address: SocketAddr,
    pub connections: usize,
    /// Template of each request.
    pub request: Template,
    /// Seed of users and keys.
    pub seed: u64,
    /// Schedule of the requests.
    pub pace: Pace,
}

/// A fixed-length request with slots that are overwritten for each request sent.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
    /// User tokens of the same length, used round-robin.
    tokens: Arc<[String]>,
}

/// Kind and position of a slot.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Uuid(usize),
    Turn(usize),
    Token(usize),
}

impl Template {
    /// Parses `text`, in which each `{uuid}` becomes a new UUID and `{turn}` counts the requests of a load:
    /// 000 to 999, repeatedly.
    pub fn new(text: &str) -> Self {
        Self::with_tokens(text, Arc::default())
    }

    /// Parses `text` like [`Template::new`]; each `{token}` becomes the next of `tokens`.
    fn with_tokens(text: &str, tokens: Arc<[String]>) -> Self {
        let (mut bytes, mut slots) = (Vec::new(), Vec::new());
        for part in text.split_inclusive('}') {
            let (before, slot, length) = if let Some(before) = part.strip_suffix("{uuid}") {
                (before, Slot::Uuid(bytes.len() + before.len()), UUID_CHARS)
            } else if let Some(before) = part.strip_suffix("{turn}") {
                (before, Slot::Turn(bytes.len() + before.len()), TURN_DIGITS)
            } else if let (Some(before), Some(first)) = (part.strip_suffix("{token}"), tokens.first()) {
                (before, Slot::Token(bytes.len() + before.len()), first.len())
            } else {
                bytes.extend_from_slice(part.as_bytes());
                continue;
            };
            bytes.extend_from_slice(before.as_bytes());
            bytes.resize(bytes.len() + length, b'0');
            slots.push(slot);
        }
        Self { bytes, slots, tokens }
    }

    /// Builds a `POST` of JSON; each line of `headers` ends with CRLF.
    pub fn post(path: &str, headers: &str, body: &str) -> Self {
        Self::new(&post(path, headers, body))
    }

    /// Builds a first try to claim, as the page sends it. Each request has the next of `tokens`.
    pub fn first_try(path: &str, tokens: Arc<[String]>) -> Self {
        let headers = "Authorization: Bearer {token}\r\nIdempotency-Key: {uuid}\r\nClaimgate-Attempt: 1\r\n";
        Self::with_tokens(&post(path, headers, "{}"), tokens)
    }

    /// Builds a back end's first try to claim one unit, by a new user with a new key.
    pub fn claim(campaign: &str) -> Self {
        Self::claim_of(campaign, "{uuid}")
    }

    /// Builds the same request as [`Template::claim`], by `user`.
    pub fn claim_of(campaign: &str, user: &str) -> Self {
        let body = format!(
            r#"{{"campaign_id":"{campaign}","user_id":"{user}","quantity":1,"idempotency_key":"{{uuid}}"}}"#
        );
        let headers = format!("Authorization: Bearer {API_TOKEN}\r\nClaimgate-Attempt: 1\r\n");
        Self::post("/internal/v1/claims", &headers, &body)
    }

    /// Builds a lookup of a new user's claims, as the edge sends it.
    pub fn look_up(campaign: &str) -> Self {
        Self::new(&format!(
            "GET /internal/v1/campaigns/{campaign}/users/{{uuid}} HTTP/1.1\r\nHost: bench\r\n\
             Authorization: Bearer {API_TOKEN}\r\n\r\n"
        ))
    }

    /// Builds one request with `claims` claims of one unit, each by a new user with a new key.
    pub fn claims(campaign: &str, claims: u32) -> Self {
        let claim =
            format!(r#"{{"campaign_id":"{campaign}","user_id":"{{uuid}}","idempotency_key":"{{uuid}}"}}"#);
        let body = format!(r#"{{"claims":[{}]}}"#, vec![claim; claims as usize].join(","));
        Self::post("/internal/v1/claims/batch", &format!("Authorization: Bearer {API_TOKEN}\r\n"), &body)
    }
}

/// Returns a `POST` request as a string.
fn post(path: &str, headers: &str, body: &str) -> String {
    let length = Template::new(body).bytes.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Schedule of the requests.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// Sends a request after each response, for this duration.
    Closed(Duration),
    /// Sends a request after each response, up to this number.
    Count(u64),
    /// Sends requests at a constant rate per second for this duration, regardless of responses. Latency is
    /// measured from the scheduled time, even if no connection was free at that time.
    Open(f64, Duration),
}

/// The result of a load.
#[derive(Debug)]
pub struct Tally {
    pub statuses: BTreeMap<u16, u64>,
    /// Responses with code `sold_out`.
    pub sold_out: u64,
    /// Requests resent unchanged after a 503.
    pub retries: u64,
    /// Responses before the load's end.
    pub in_time: u64,
    /// Duration of the load in seconds.
    pub seconds: f64,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        let latency = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
        Ok(Self { statuses: BTreeMap::new(), sold_out: 0, retries: 0, in_time: 0, seconds: 0.0, latency })
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        for (status, answers) in &other.statuses {
            *self.statuses.entry(*status).or_default() += answers;
        }
        self.sold_out += other.sold_out;
        self.retries += other.retries;
        self.in_time += other.in_time;
        self.seconds += other.seconds;
        Ok(self.latency.add(&other.latency)?)
    }

    pub fn per_second(&self) -> f64 {
        self.in_time as f64 / self.seconds
    }

    /// Returns the latency at `quantile` (0 to 1), in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// Returns the number of granted claims; any other response is an error. A claim resent after a 503 may
    /// already be granted, and then gets a replay.
    pub fn granted(&self) -> anyhow::Result<u64> {
        let replayed = self.statuses.get(&200).copied().unwrap_or(0);
        let granted = self.statuses.get(&201).copied().unwrap_or(0);
        let all: u64 = self.statuses.values().sum();
        ensure!(
            granted + replayed == all && replayed <= self.retries,
            "not every claim was granted (status, number): {:?}; retries: {}",
            self.statuses,
            self.retries
        );
        Ok(all)
    }

    /// Returns the number of responses, all of which must have `status`.
    pub fn all(&self, status: u16) -> anyhow::Result<u64> {
        let others: Vec<_> = self.statuses.iter().filter(|(found, _)| **found != status).collect();
        ensure!(others.is_empty(), "not every response was {status}; others (status, number): {others:?}");
        Ok(self.statuses.get(&status).copied().unwrap_or(0))
    }
}

/// Runs a load and waits for its last response.
pub async fn run(load: Load) -> anyhow::Result<Tally> {
    tokio::task::spawn_blocking(move || Client::connect(&load)?.run(load.pace)).await?
}

/// Runs `loads` alternately, each for its pace's duration, `turns` times, on persistent connections. On a shared
/// machine the speed drifts, and short turns let it drift equally for all. The first turns are only warm-up.
pub async fn alternate<const N: usize>(loads: [Load; N], turns: u32) -> anyhow::Result<[Tally; N]> {
    tokio::task::spawn_blocking(move || {
        let mut clients = Vec::new();
        for load in &loads {
            let mut client = Client::connect(load)?;
            client.run(load.pace)?;
            clients.push((client, load.pace, Tally::new()?));
        }
        for _ in 0..turns {
            for (client, pace, tally) in &mut clients {
                tally.add(&client.run(*pace)?)?;
            }
        }
        let tallies: Vec<_> = clients.into_iter().map(|(_, _, tally)| tally).collect();
        tallies.try_into().map_err(|_| anyhow!("a tally for each load"))
    })
    .await?
}

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
    /// Bytes of the response received so far.
    filled: usize,
    /// Start of the latency.
    since: Instant,
}

impl Connection {
    fn send(&mut self) -> anyhow::Result<()> {
        let written = self.stream.write(&self.request).context("sending a request")?;
        ensure!(written == self.request.len(), "the socket's send buffer took only part of a request");
        Ok(())
    }
}

struct Client {
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<Connection>,
    idle: Vec<usize>,
    uuids: Uuids,
    slots: Vec<Slot>,
    tokens: Arc<[String]>,
    next_token: usize,
    sent: u64,
    tally: Tally,
}

impl Client {
    fn connect(load: &Load) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), edge)?;
        let mut connections = Vec::new();
        for number in 0..load.connections {
            let stream = TcpStream::connect(load.address).context("connecting the load")?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            // Room for a whole request, which is written in one call.
            set_socket_send_buffer_size(&stream, load.request.bytes.len().max(SEND_BYTES_MIN))?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(number as u64), edge)?;
            let response = vec![0; RESPONSE_BYTES_MAX];
            let request = load.request.bytes.clone();
            connections.push(Connection { stream, request, response, filled: 0, since: Instant::now() });
        }
        let idle = (0..load.connections).collect();
        let uuids = Uuids::of(load.seed);
        let (slots, tokens) = (load.request.slots.clone(), Arc::clone(&load.request.tokens));
        let tally = Tally::new()?;
        Ok(Self { epoll, timer, connections, idle, uuids, slots, tokens, next_token: 0, sent: 0, tally })
    }

    fn run(&mut self, pace: Pace) -> anyhow::Result<Tally> {
        self.sent = 0;
        let started = Instant::now();
        let length = match pace {
            Pace::Closed(length) | Pace::Open(_, length) => length,
            Pace::Count(_) => Duration::MAX,
        };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            self.send_due(pace, started)?;
            let all_sent = self.next_due(pace, started).is_none();
            if all_sent && self.idle.len() == self.connections.len() {
                break;
            }
            self.wait(&mut events)?;
            let in_time = started.elapsed() <= length;
            for event in events.drain(..) {
                let number = event.data.u64();
                if number == TIMER {
                    continue;
                }
                self.receive(usize::try_from(number)?, in_time)?;
            }
        }
        let elapsed = started.elapsed();
        self.tally.seconds = elapsed.min(length).as_secs_f64();
        Ok(mem::replace(&mut self.tally, Tally::new()?))
    }

    /// Returns when the next request is due; `None` after the last one.
    fn next_due(&self, pace: Pace, started: Instant) -> Option<Instant> {
        match pace {
            Pace::Closed(length) => (started.elapsed() < length).then(Instant::now),
            Pace::Count(count) => (self.sent < count).then(Instant::now),
            Pace::Open(rate, length) => {
                let after = Duration::from_secs_f64(self.sent as f64 / rate);
                (after < length).then(|| started + after)
            }
        }
    }

    /// Sends due requests on idle connections, and sets the timer for the next one.
    fn send_due(&mut self, pace: Pace, started: Instant) -> anyhow::Result<()> {
        while let Some(number) = self.idle.last().copied() {
            let Some(due) = self.next_due(pace, started) else { return Ok(()) };
            let now = Instant::now();
            if due > now {
                return self.set_timer(due - now);
            }
            self.idle.pop();
            self.send(number, due)?;
        }
        Ok(())
    }

    fn send(&mut self, number: usize, since: Instant) -> anyhow::Result<()> {
        let connection = &mut self.connections[number];
        for slot in &self.slots {
            match *slot {
                Slot::Uuid(at) => self.uuids.write(&mut connection.request[at..at + UUID_CHARS]),
                Slot::Turn(at) => {
                    write_number(self.sent % TURNS, &mut connection.request[at..at + TURN_DIGITS]);
                }
                Slot::Token(at) => {
                    let token = self.tokens[self.next_token].as_bytes();
                    connection.request[at..at + token.len()].copy_from_slice(token);
                    self.next_token = (self.next_token + 1) % self.tokens.len();
                }
            }
        }
        connection.since = since;
        connection.filled = 0;
        connection.send()?;
        self.sent += 1;
        Ok(())
    }

    fn receive(&mut self, number: usize, in_time: bool) -> anyhow::Result<()> {
        let connection = &mut self.connections[number];
        let read = match connection.stream.read(&mut connection.response[connection.filled..]) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("reading a response"),
        };
        connection.filled += read;
        let bytes = &connection.response[..connection.filled];
        let Some(Response { status, is_sold_out }) = answer::parse(bytes)? else { return Ok(()) };
        if status == 503 {
            // The outcome is unknown, or the claim was not processed: retry it; its latency continues.
            ensure!(self.tally.retries < RETRIES_MAX, "more than {RETRIES_MAX} responses were 503");
            self.tally.retries += 1;
            connection.filled = 0;
            return connection.send();
        }
        let latency = connection.since.elapsed().as_nanos();
        self.tally.latency.saturating_record(u64::try_from(latency).unwrap_or(u64::MAX));
        *self.tally.statuses.entry(status).or_default() += 1;
        self.tally.sold_out += u64::from(is_sold_out);
        self.tally.in_time += u64::from(in_time);
        self.idle.push(number);
        Ok(())
    }

    fn set_timer(&self, after: Duration) -> anyhow::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Zero would disarm the timer.
        let value = Timespec { tv_sec: 0, tv_nsec: i64::from(after.subsec_nanos().max(1)) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    fn wait(&self, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        let limit = Timespec { tv_sec: i64::try_from(RESPONSE_TIMEOUT.as_secs())?, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&limit)) {
            Ok(0) => bail!("no response within {RESPONSE_TIMEOUT:?}"),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Fills `slot` with the last digits of `number`.
fn write_number(mut number: u64, slot: &mut [u8]) {
    for digit in slot.iter_mut().rev() {
        *digit = b"0123456789"[(number % 10) as usize];
        number /= 10;
    }
}
