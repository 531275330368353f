//! The HTTP load: a client that spends as little of the machine as it can.
//!
//! One thread, one epoll, keep-alive connections. A request is a text of fixed length in which UUIDs, such as the user
//! and the key, are written over; of an answer the status and the length are read.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use support::core_client::API_TOKEN;

use crate::answer::{self, Answer};
use crate::users::{UUID_CHARS, Uuids};

/// The longest that any answer may take; a server that takes longer has failed.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// A whole batch of claims has some 120 KiB.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// As the system would begin with, or more: a small request does not need a smaller buffer.
const SEND_BYTES_MIN: usize = 64 * 1024;
const EVENTS_MAX: usize = 256;
/// Requests of one load that may be sent again after a 503; more of them are a server that does not keep up.
const AGAIN_MAX: u64 = 10_000;
/// Latencies are told apart to three digits, up to a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Places that requests go through in turn.
pub const TURNS: u64 = 1_000;
/// Digits of a turn.
const TURN_DIGITS: usize = 3;
/// What the timer's events say instead of a connection's number.
const TIMER: u64 = u64::MAX;

/// A load to be made.
#[derive(Debug, Clone)]
pub struct Load {
    /// Who answers.
    pub address: SocketAddr,
    /// Connections.
    pub connections: usize,
    /// What each request is.
    pub request: Template,
    /// Of the users and keys.
    pub seed: u64,
    /// When requests are made.
    pub pace: Pace,
}

/// A request of fixed length with places that are written over for each one sent.
#[derive(Debug, Clone)]
pub struct Template {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

/// What is written over, and where it begins.
#[derive(Debug, Clone, Copy)]
enum Place {
    Uuid(usize),
    Turn(usize),
}

impl Template {
    /// `text`, in which each `{uuid}` is one that was never used before, and `{turn}` counts the requests of a load: 000
    /// to 999, over and over.
    pub fn new(text: &str) -> Self {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for part in text.split_inclusive('}') {
            let (before, place, length) = if let Some(before) = part.strip_suffix("{uuid}") {
                (before, Place::Uuid(bytes.len() + before.len()), UUID_CHARS)
            } else if let Some(before) = part.strip_suffix("{turn}") {
                (before, Place::Turn(bytes.len() + before.len()), TURN_DIGITS)
            } else {
                bytes.extend_from_slice(part.as_bytes());
                continue;
            };
            bytes.extend_from_slice(before.as_bytes());
            bytes.resize(bytes.len() + length, b'0');
            places.push(place);
        }
        Self { bytes, places }
    }

    /// A `POST` of JSON; `headers` are lines, each with its end.
    pub fn post(path: &str, headers: &str, body: &str) -> Self {
        let length = Self::new(body).bytes.len();
        Self::new(&format!(
            "POST {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// A claim of one unit by a new user with a new key, as a back end sends its first try.
    pub fn claim(campaign: &str) -> Self {
        Self::claim_of(campaign, "{uuid}")
    }

    /// The same by `user`.
    pub fn claim_of(campaign: &str, user: &str) -> Self {
        let body = format!(
            r#"{{"campaign_id":"{campaign}","user_id":"{user}","quantity":1,"idempotency_key":"{{uuid}}"}}"#
        );
        let headers = format!("Authorization: Bearer {API_TOKEN}\r\nClaimgate-Attempt: 1\r\n");
        Self::post("/internal/v1/claims", &headers, &body)
    }

    /// A look-up of what a user has who was not there before, as the edge makes it.
    pub fn look_up(campaign: &str) -> Self {
        Self::new(&format!(
            "GET /internal/v1/campaigns/{campaign}/users/{{uuid}} HTTP/1.1\r\nHost: bench\r\n\
             Authorization: Bearer {API_TOKEN}\r\n\r\n"
        ))
    }

    /// `claims` claims of one unit in one request, each by a new user with a new key.
    pub fn claims(campaign: &str, claims: u32) -> Self {
        let claim =
            format!(r#"{{"campaign_id":"{campaign}","user_id":"{{uuid}}","idempotency_key":"{{uuid}}"}}"#);
        let body = format!(r#"{{"claims":[{}]}}"#, vec![claim; claims as usize].join(","));
        Self::post("/internal/v1/claims/batch", &format!("Authorization: Bearer {API_TOKEN}\r\n"), &body)
    }
}

/// When requests are made.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// A new request on each answer, for this long.
    Closed(Duration),
    /// A new request on each answer, up to this number.
    Count(u64),
    /// At a constant rate a second for this long, whatever the answers do. Latency counts from the moment at which a
    /// request was due, also when no connection was free then.
    Open(f64, Duration),
}

/// What came of a load.
#[derive(Debug)]
pub struct Tally {
    /// Answers by their status.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers that said `sold_out`.
    pub sold_out: u64,
    /// Requests sent again, as they were, after a 503.
    pub again: u64,
    /// Answers within the time of the load.
    pub in_time: u64,
    /// The time of the load, in seconds.
    pub seconds: f64,
    /// In nanoseconds.
    pub latency: Histogram<u64>,
}

impl Tally {
    fn new() -> anyhow::Result<Self> {
        let latency = Histogram::new_with_max(LATENCY_NS_MAX, 3)?;
        Ok(Self { statuses: BTreeMap::new(), sold_out: 0, again: 0, in_time: 0, seconds: 0.0, latency })
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        for (status, answers) in &other.statuses {
            *self.statuses.entry(*status).or_default() += answers;
        }
        self.sold_out += other.sold_out;
        self.again += other.again;
        self.in_time += other.in_time;
        self.seconds += other.seconds;
        Ok(self.latency.add(&other.latency)?)
    }

    /// Answers per second.
    pub fn per_second(&self) -> f64 {
        self.in_time as f64 / self.seconds
    }

    /// Latency below which the share `quantile` (0 to 1) of the answers came, in microseconds.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// How many claims were granted; any other answer fails the run. A claim sent again after a 503 may have been
    /// granted before, and then is met again.
    pub fn granted(&self) -> anyhow::Result<u64> {
        let met_again = self.statuses.get(&200).copied().unwrap_or(0);
        let granted = self.statuses.get(&201).copied().unwrap_or(0);
        let all: u64 = self.statuses.values().sum();
        ensure!(
            granted + met_again == all && met_again <= self.again,
            "not every claim was granted (status, number): {:?}; sent again: {}",
            self.statuses,
            self.again
        );
        Ok(all)
    }

    /// How many answers there were, all of `status`; any other fails the run.
    pub fn all(&self, status: u16) -> anyhow::Result<u64> {
        let others: Vec<_> = self.statuses.iter().filter(|(found, _)| **found != status).collect();
        ensure!(others.is_empty(), "not every answer was {status}; others (status, number): {others:?}");
        Ok(self.statuses.get(&status).copied().unwrap_or(0))
    }
}

/// Makes a load and waits for its last answer.
pub async fn run(load: Load) -> anyhow::Result<Tally> {
    tokio::task::spawn_blocking(move || Client::connect(&load)?.run(load.pace)).await?
}

/// Makes each of `loads` for the length of its pace in turn, `turns` times over and over, connected all the while: the
/// speed of a machine that others use drifts, and short turns let it drift for all alike. The first turns only warm up.
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
    answer: Vec<u8>,
    /// Bytes of the answer that are there.
    filled: usize,
    /// From when the latency counts.
    since: Instant,
}

impl Connection {
    fn send(&mut self) -> anyhow::Result<()> {
        let written = self.stream.write(&self.request).context("sending a request")?;
        ensure!(written == self.request.len(), "a request did not fit into its socket");
        Ok(())
    }
}

struct Client {
    epoll: OwnedFd,
    timer: OwnedFd,
    connections: Vec<Connection>,
    idle: Vec<usize>,
    uuids: Uuids,
    places: Vec<Place>,
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
            // Room for a whole request, which is written at once.
            set_socket_send_buffer_size(&stream, load.request.bytes.len().max(SEND_BYTES_MIN))?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(number as u64), edge)?;
            let answer = vec![0; ANSWER_BYTES_MAX];
            let request = load.request.bytes.clone();
            connections.push(Connection { stream, request, answer, filled: 0, since: Instant::now() });
        }
        let idle = (0..load.connections).collect();
        let uuids = Uuids::of(load.seed);
        let places = load.request.places.clone();
        Ok(Self { epoll, timer, connections, idle, uuids, places, sent: 0, tally: Tally::new()? })
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

    /// When the next request is to be made; `None` when there is none any more.
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

    /// Sends all that is due on connections that are free, and sets the timer for what is not due yet.
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
        for place in &self.places {
            match *place {
                Place::Uuid(at) => self.uuids.write(&mut connection.request[at..at + UUID_CHARS]),
                Place::Turn(at) => {
                    write_number(self.sent % TURNS, &mut connection.request[at..at + TURN_DIGITS]);
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
        let read = match connection.stream.read(&mut connection.answer[connection.filled..]) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("reading an answer"),
        };
        connection.filled += read;
        let bytes = &connection.answer[..connection.filled];
        let Some(Answer { status, is_sold_out }) = answer::whole(bytes)? else { return Ok(()) };
        if status == 503 {
            // Its outcome is unknown, or it was not tried: the same again, and its latency goes on.
            ensure!(self.tally.again < AGAIN_MAX, "more than {AGAIN_MAX} answers were 503");
            self.tally.again += 1;
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
        // Zero would take the timer back.
        let value = Timespec { tv_sec: 0, tv_nsec: i64::from(after.subsec_nanos().max(1)) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    fn wait(&self, events: &mut Vec<epoll::Event>) -> anyhow::Result<()> {
        let limit = Timespec { tv_sec: i64::try_from(ANSWER_WAIT.as_secs())?, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&limit)) {
            Ok(0) => bail!("no answer within {ANSWER_WAIT:?}"),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Fills `place` with the last digits of `number`.
fn write_number(mut number: u64, place: &mut [u8]) {
    for digit in place.iter_mut().rev() {
        *digit = b"0123456789"[(number % 10) as usize];
        number /= 10;
    }
}
