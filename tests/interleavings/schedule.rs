//! An order of two protocols' steps, which can be printed, parsed and run.

use std::fmt;
use std::str::FromStr;

use super::initial_state::{INITIAL_STATES, InitialState};
use super::judge::judge;
use super::node::TestCore;
use super::play::ScheduleRun;
use super::protocol::{PROTOCOLS, Protocol};
use super::track::{END, RunningProtocol, StepPosition};
use super::world::{Database, World};

/// The fate of protocol A at its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// A is stopped before the step until B has finished.
    Preempted,
    /// A is stopped before the step, and B is stopped before one of its own steps until A has finished.
    BothPreempted(StepPosition),
    /// A's core dies before the step; another core starts in its place.
    Crash,
    /// The step is executed, but its reply is lost.
    LostReply,
}

impl Fate {
    /// Returns the name in the summary of schedules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preempted => "one pre-emption",
            Self::BothPreempted(_) => "two pre-emptions",
            Self::Crash => "crash",
            Self::LostReply => "lost reply",
        }
    }
}

/// A complete schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Schedule {
    pub database: Database,
    pub initial: InitialState,
    pub a: Protocol,
    /// A's step.
    pub at: StepPosition,
    pub fate: Fate,
    pub b: Protocol,
    /// Whether leases expire at each switch between the cores.
    pub expire: bool,
    /// Whether the campaign has codes.
    pub codes: bool,
}

impl fmt::Display for StepPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(number) => write!(f, "{number}"),
            Self::Named(name, 1) => write!(f, "{name}"),
            Self::Named(name, occurrence) => write!(f, "{name}#{occurrence}"),
        }
    }
}

impl FromStr for StepPosition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Step(number));
        }
        let (name, occurrence) = text.split_once('#').unwrap_or((text, "1"));
        let occurrence = occurrence.parse().map_err(|_| format!("not a position: {text}"))?;
        Ok(Self::Named(name.to_owned().leak(), occurrence))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = if self.database == Database::Sqlite { "sqlite" } else { "postgres" };
        write!(f, "{database} {} {}@{}", self.initial.name(), self.a.name(), self.at)?;
        match self.fate {
            Fate::Preempted => write!(f, " {}", self.b.name())?,
            Fate::BothPreempted(at) => write!(f, " {}@{at}", self.b.name())?,
            Fate::Crash => write!(f, "=crash {}", self.b.name())?,
            Fate::LostReply => write!(f, "=lost {}", self.b.name())?,
        }
        write!(f, " lease={}", if self.expire { "expired" } else { "held" })?;
        if self.codes { f.write_str(" codes") } else { Ok(()) }
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a schedule: {text}");
        let (text, codes) = text.strip_suffix(" codes").map_or((text, false), |text| (text, true));
        let words: Vec<&str> = text.split_whitespace().collect();
        let [database, initial, a, b, lease] = words[..] else { return Err(wrong()) };
        let (a, at) = a.split_once('@').ok_or_else(wrong)?;
        let (b, b_at) = b.split_once('@').map_or((b, None), |(b, at)| (b, Some(at)));
        let (at, mark) = at.split_once('=').unwrap_or((at, ""));
        let fate = match (mark, b_at) {
            ("", None) => Fate::Preempted,
            ("", Some(at)) => Fate::BothPreempted(at.parse()?),
            ("crash", None) => Fate::Crash,
            ("lost", None) => Fate::LostReply,
            _ => return Err(wrong()),
        };
        let protocol = |name: &str| PROTOCOLS.into_iter().find(|(_, known)| *known == name).map(|(of, _)| of);
        Ok(Self {
            database: match database {
                "sqlite" => Database::Sqlite,
                "postgres" => Database::Postgres,
                _ => return Err(wrong()),
            },
            initial: INITIAL_STATES
                .into_iter()
                .find(|(_, name)| *name == initial)
                .map(|(of, _)| of)
                .ok_or_else(wrong)?,
            a: protocol(a).ok_or_else(wrong)?,
            at: at.parse()?,
            fate,
            b: protocol(b).ok_or_else(wrong)?,
            expire: match lease {
                "lease=expired" => true,
                "lease=held" => false,
                _ => return Err(wrong()),
            },
            codes,
        })
    }
}

/// The result of a schedule.
#[derive(Debug)]
pub struct Played {
    /// The broken guarantee; `None` if all held.
    pub wrong: Option<String>,
    /// All events, line by line.
    pub lines: Vec<String>,
    /// Whether any lease was held at a switch. If not, the expiry of leases makes no difference.
    pub leases: bool,
    /// The steps that A and B reached.
    pub steps: [Vec<&'static str>; 2],
    /// Whether A's and B's positions were reached: a protocol may have fewer steps than the schedule assumes.
    pub met: [bool; 2],
}

impl Schedule {
    /// Plays the schedule on a new campaign.
    pub async fn play(&self, world: &World) -> Played {
        let protocols = [self.a, self.b];
        let play = ScheduleRun::new(world, protocols.contains(&Protocol::Forget), self.codes);
        let deliverer = protocols.iter().position(|protocol| *protocol == Protocol::Webhook);
        if deliverer.is_some() {
            world.receiver().await;
        }
        let nodes = [world.node(0), world.node(1)];
        if let Some(at) = deliverer {
            play.create_webhook(&nodes[at]).await;
        }
        self.initial.set(&play, &nodes).await;
        let mut progress = Progress {
            leases: false,
            steps: [vec![], vec![]],
            met: [true; 2],
            expire: self.expire,
            initial: self.initial,
        };
        let result = match self.run(&play, nodes, &mut progress).await {
            Ok(nodes) => {
                play.log.add("    both protocols ended".to_owned());
                judge(&play, &nodes, self.initial).await
            }
            Err(stuck) => Err(stuck),
        };
        world.remove(&play.id).await;
        let Progress { leases, steps, met, .. } = progress;
        Played { wrong: result.err(), lines: play.log.lines(), leases, steps, met }
    }

    /// Runs both protocols; returns the cores that exist afterwards.
    async fn run(
        &self,
        play: &ScheduleRun<'_>,
        nodes: [TestCore; 2],
        progress: &mut Progress,
    ) -> Result<[TestCore; 2], String> {
        let lose = (self.fate == Fate::LostReply).then_some(self.at);
        let log = || play.log.clone();
        let mut a = RunningProtocol::new("A", log(), lose, self.a.run(play, &nodes[0], self.initial));
        let mut b = RunningProtocol::new("B", log(), None, self.b.run(play, &nodes[1], self.initial));
        if self.fate == Fate::LostReply {
            let said = a.run_to_its_end().await?;
            play.log.add(format!("A {} ends: {said}", self.a.name()));
        } else if let Some(said) = a.run(self.at).await? {
            play.log.add(format!("A {} ends: {said}", self.a.name()));
        } else {
            play.log.add(format!("A {} is stopped before this step", self.a.name()));
        }
        progress.steps[0] = a.steps();
        progress.met[0] = self.fate == Fate::LostReply || a.met(self.at);
        if self.fate == Fate::Crash {
            drop((a, b));
            let [_, second] = nodes;
            play.log.add("A dies; another core starts in its place".to_owned());
            let nodes = [play.world.node(0), second];
            nodes[0].refresh().await;
            progress.switch(play, &nodes).await;
            let mut b = RunningProtocol::new("B", log(), None, self.b.run(play, &nodes[1], self.initial));
            let said = b.run_to_its_end().await?;
            play.log.add(format!("B {} ends: {said}", self.b.name()));
            progress.switch(play, &nodes).await;
            drop(b);
            return Ok(nodes);
        }
        progress.switch(play, &nodes).await;
        let b_stop = if let Fate::BothPreempted(at) = self.fate { at } else { END };
        match b.run(b_stop).await? {
            Some(said) => play.log.add(format!("B {} ends: {said}", self.b.name())),
            None => play.log.add(format!("B {} is stopped before this step", self.b.name())),
        }
        progress.met[1] = b_stop == END || b.met(b_stop);
        progress.switch(play, &nodes).await;
        for (track, name, protocol) in [(&mut a, "A", self.a), (&mut b, "B", self.b)] {
            if !track.is_done() {
                let said = track.run_to_its_end().await?;
                play.log.add(format!("{name} {} ends: {said}", protocol.name()));
                progress.switch(play, &nodes).await;
            }
        }
        progress.steps[1] = b.steps();
        drop((a, b));
        Ok(nodes)
    }
}

/// The progress of a schedule.
struct Progress {
    leases: bool,
    steps: [Vec<&'static str>; 2],
    met: [bool; 2],
    expire: bool,
    initial: InitialState,
}

impl Progress {
    /// Switches between the cores: callers claim at both, and leases may expire.
    async fn switch(&mut self, play: &ScheduleRun<'_>, nodes: &[TestCore; 2]) {
        if self.expire {
            self.leases |= play.expire_leases().await;
        } else {
            self.leases |= play.has_leases().await;
        }
        play.callers(nodes, self.initial).await;
        play.look_at_codes(nodes).await;
    }
}
