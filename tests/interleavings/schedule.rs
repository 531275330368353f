//! One order of two protocols' steps: written out, read back, played.

use std::fmt;
use std::str::FromStr;

use super::initial_state::{INITIAL_STATES, InitialState};
use super::judge::judge;
use super::node::Node;
use super::play::Play;
use super::protocol::{PROTOCOLS, Protocol};
use super::track::{END, Place, Track};
use super::world::{Database, World};

/// What befalls the first protocol, A, at its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It is held up before it, for as long as B takes.
    HeldUp,
    /// The same, and B is held up before a step of its own, for as long as the rest of A takes.
    BothHeldUp(Place),
    /// Its core dies before it; another one starts in its place.
    Crash,
    /// It is done, but the reply is lost.
    LostReply,
}

impl Fate {
    /// For the count of schedules.
    pub fn name(self) -> &'static str {
        match self {
            Self::HeldUp => "one pre-emption",
            Self::BothHeldUp(_) => "two pre-emptions",
            Self::Crash => "crash",
            Self::LostReply => "lost reply",
        }
    }
}

/// A schedule, complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Schedule {
    pub database: Database,
    pub initial: InitialState,
    pub a: Protocol,
    /// A's step.
    pub at: Place,
    pub fate: Fate,
    pub b: Protocol,
    /// Whether leases run out each time the cores change places.
    pub expire: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(number) => write!(f, "{number}"),
            Self::Named(name, 1) => write!(f, "{name}"),
            Self::Named(name, occurrence) => write!(f, "{name}#{occurrence}"),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Step(number));
        }
        let (name, occurrence) = text.split_once('#').unwrap_or((text, "1"));
        let occurrence = occurrence.parse().map_err(|_| format!("not a place: {text}"))?;
        Ok(Self::Named(name.to_owned().leak(), occurrence))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let database = if self.database == Database::Sqlite { "sqlite" } else { "postgres" };
        write!(f, "{database} {} {}@{}", self.initial.name(), self.a.name(), self.at)?;
        match self.fate {
            Fate::HeldUp => write!(f, " {}", self.b.name())?,
            Fate::BothHeldUp(at) => write!(f, " {}@{at}", self.b.name())?,
            Fate::Crash => write!(f, "=crash {}", self.b.name())?,
            Fate::LostReply => write!(f, "=lost {}", self.b.name())?,
        }
        write!(f, " lease={}", if self.expire { "expired" } else { "held" })
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a schedule: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let [database, initial, a, b, lease] = words[..] else { return Err(wrong()) };
        let (a, at) = a.split_once('@').ok_or_else(wrong)?;
        let (b, b_at) = b.split_once('@').map_or((b, None), |(b, at)| (b, Some(at)));
        let (at, mark) = at.split_once('=').unwrap_or((at, ""));
        let fate = match (mark, b_at) {
            ("", None) => Fate::HeldUp,
            ("", Some(at)) => Fate::BothHeldUp(at.parse()?),
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
        })
    }
}

/// What a schedule came to.
#[derive(Debug)]
pub struct Played {
    /// What is wrong; `None` when every promise was kept.
    pub wrong: Option<String>,
    /// All that happened, line by line.
    pub lines: Vec<String>,
    /// Whether some lease was held when the cores changed places: else it is all the same whether leases run out.
    pub leases: bool,
    /// The steps that A and B came to.
    pub steps: [Vec<&'static str>; 2],
    /// Whether A's and B's places were met: a protocol may be shorter than was thought.
    pub met: [bool; 2],
}

impl Schedule {
    /// Plays it on a campaign of its own.
    pub async fn play(&self, world: &World) -> Played {
        let forgets = [self.a, self.b].contains(&Protocol::Forget);
        let play = Play::new(world, forgets);
        let nodes = [world.node(0), world.node(1)];
        play.leave_a_database_behind().await;
        self.initial.set(&play, &nodes).await;
        let mut stand = Stand {
            leases: false,
            steps: [vec![], vec![]],
            met: [true; 2],
            expire: self.expire,
            initial: self.initial,
        };
        let result = match self.run(&play, nodes, &mut stand).await {
            Ok(nodes) => {
                play.log.add("    all is over".to_owned());
                judge(&play, &nodes, self.initial).await
            }
            Err(stuck) => Err(stuck),
        };
        world.remove(&play.id).await;
        let Stand { leases, steps, met, .. } = stand;
        Played { wrong: result.err(), lines: play.log.lines(), leases, steps, met }
    }

    /// Runs both protocols; the cores that are there afterwards.
    async fn run(&self, play: &Play<'_>, nodes: [Node; 2], stand: &mut Stand) -> Result<[Node; 2], String> {
        let lose = (self.fate == Fate::LostReply).then_some(self.at);
        let log = || play.log.clone();
        let mut a = Track::new("A", log(), lose, self.a.run(play, &nodes[0], self.initial));
        let mut b = Track::new("B", log(), None, self.b.run(play, &nodes[1], self.initial));
        if self.fate == Fate::LostReply {
            let said = a.run_to_its_end().await?;
            play.log.add(format!("A {} ends: {said}", self.a.name()));
        } else if let Some(said) = a.run(self.at).await? {
            play.log.add(format!("A {} ends: {said}", self.a.name()));
        } else {
            play.log.add(format!("A {} stands before that", self.a.name()));
        }
        stand.steps[0] = a.steps();
        stand.met[0] = self.fate == Fate::LostReply || a.met(self.at);
        if self.fate == Fate::Crash {
            drop((a, b));
            let [_, second] = nodes;
            play.log.add("A dies; another core starts in its place".to_owned());
            let nodes = [play.world.node(0), second];
            nodes[0].refresh().await;
            stand.change_over(play, &nodes).await;
            let mut b = Track::new("B", log(), None, self.b.run(play, &nodes[1], self.initial));
            let said = b.run_to_its_end().await?;
            play.log.add(format!("B {} ends: {said}", self.b.name()));
            stand.change_over(play, &nodes).await;
            drop(b);
            return Ok(nodes);
        }
        stand.change_over(play, &nodes).await;
        let b_stop = if let Fate::BothHeldUp(at) = self.fate { at } else { END };
        match b.run(b_stop).await? {
            Some(said) => play.log.add(format!("B {} ends: {said}", self.b.name())),
            None => play.log.add(format!("B {} stands before that", self.b.name())),
        }
        stand.met[1] = b_stop == END || b.met(b_stop);
        stand.change_over(play, &nodes).await;
        for (track, name, protocol) in [(&mut a, "A", self.a), (&mut b, "B", self.b)] {
            if !track.is_done() {
                let said = track.run_to_its_end().await?;
                play.log.add(format!("{name} {} ends: {said}", protocol.name()));
                stand.change_over(play, &nodes).await;
            }
        }
        stand.steps[1] = b.steps();
        drop((a, b));
        Ok(nodes)
    }
}

/// How a schedule stands.
struct Stand {
    leases: bool,
    steps: [Vec<&'static str>; 2],
    met: [bool; 2],
    expire: bool,
    initial: InitialState,
}

impl Stand {
    /// Between two cores' turns: callers ask at both, and leases run out.
    async fn change_over(&mut self, play: &Play<'_>, nodes: &[Node; 2]) {
        if self.expire {
            self.leases |= play.expire_leases().await;
        } else {
            self.leases |= play.has_leases().await;
        }
        play.callers(nodes, self.initial).await;
    }
}
