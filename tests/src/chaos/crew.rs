//! The processes and brokers of a run: struck by the plan, watched, and always brought back.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::signal::Signal;
use protocol::Role;
use tokio::time::Instant;

use super::plan::{Fault, Strike, Target};
use crate::{cluster::Cluster, process::Process, recipe::Recipe};

/// What was done and seen.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Strikes by target and kind, as the report names them.
    pub strikes: BTreeMap<(String, &'static str), usize>,
    /// Processes that ended without being told to: aborted by poison, mostly.
    pub crashes: BTreeMap<String, usize>,
    /// What no process may do.
    pub complaints: Vec<String>,
    /// When the broker, or which node of it, was struck how.
    pub broker: Vec<BrokerEvent>,
}

/// A strike at the broker.
#[derive(Debug, Clone)]
pub struct BrokerEvent {
    /// What happened to which node.
    pub what: String,
    /// When, in milliseconds of Unix time, as the broker stamps its messages.
    pub at_ms: i128,
}

/// Where a process or the broker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Frozen { until: Instant },
    Down { until: Instant },
    Ending { down: Duration, kill_at: Instant },
}

struct Member {
    target: Target,
    recipe: Recipe,
    process: Process,
    state: State,
}

/// A process told to end has 4 s of grace and some for its last words to a broker that may be frozen.
const END_WITHIN: Duration = Duration::from_secs(12);

/// A supervisor's pause before it starts a crashed process again.
const CRASH_PAUSE: Duration = Duration::from_millis(200);

/// Of the streams, those whose leader is struck, by turns: the two queues and the results.
const LEADERS_STRUCK: usize = 3;

/// All that runs.
pub struct Crew {
    members: Vec<Member>,
    /// The brokers.
    pub cluster: Cluster,
    broker: (usize, State),
    /// Of the deployment, the queues and the results first.
    streams: Vec<String>,
    broker_strikes: usize,
    folder: PathBuf,
    /// What happened so far.
    pub tally: Tally,
}

impl Crew {
    /// Starts every process.
    pub fn start(
        cluster: Cluster,
        recipes: Vec<Recipe>,
        streams: Vec<String>,
        folder: &Path,
    ) -> Self {
        let mut counts: BTreeMap<Role, usize> = BTreeMap::new();
        let members = recipes.into_iter().map(|recipe| {
            let count = counts.entry(recipe.role).or_default();
            let target = Target::Process(recipe.role, *count);
            *count += 1;
            let process = recipe.start(folder);
            Member {
                target,
                recipe,
                process,
                state: State::Up,
            }
        });
        Self {
            members: members.collect(),
            cluster,
            broker: (0, State::Up),
            streams,
            broker_strikes: 0,
            folder: folder.to_owned(),
            tally: Tally::default(),
        }
    }

    /// Whether everything runs.
    pub fn is_whole(&self) -> bool {
        self.broker.1 == State::Up && self.members.iter().all(|member| member.state == State::Up)
    }

    /// Strikes, if its target is up; says whether it was.
    pub async fn strike(&mut self, strike: &Strike) -> bool {
        let struck = match strike.target {
            Target::Broker => self.strike_broker(strike.fault).await,
            Target::Process(..) => {
                let mut members = self.members.iter_mut();
                let member = members.find(|member| member.target == strike.target);
                member
                    .expect("the plan is of this crew")
                    .strike(strike.fault)
            }
        };
        if struck {
            let target = match strike.target {
                Target::Process(Role::Operator, _) => "watcher".to_owned(),
                Target::Process(role, _) => role.to_string(),
                Target::Broker => "broker".to_owned(),
            };
            let kind = match strike.fault {
                Fault::Kill(_) => "kill -9",
                Fault::Freeze(_) => "freeze",
                Fault::Terminate(_) => "SIGTERM",
            };
            *self.tally.strikes.entry((target, kind)).or_default() += 1;
        }
        struck
    }

    async fn strike_broker(&mut self, fault: Fault) -> bool {
        // One node at a time: a cluster of three promises nothing without two of them.
        if self.broker.1 != State::Up || !self.cluster.is_healthy(&self.streams).await {
            return false;
        }
        let stream = &self.streams[self.broker_strikes % LEADERS_STRUCK];
        let Some(node) = self.cluster.leader(stream).await else {
            return false;
        };
        let what = format!("{} n{node}, leader of {stream}", name(fault));
        self.broker_strikes += 1;
        self.note_broker(what);
        let broker = self.cluster.node(node);
        let state = match fault {
            Fault::Freeze(frozen) => {
                broker.freeze();
                State::Frozen {
                    until: Instant::now() + frozen,
                }
            }
            Fault::Kill(down) | Fault::Terminate(down) => {
                broker.kill();
                State::Down {
                    until: Instant::now() + down,
                }
            }
        };
        self.broker = (node, state);
        true
    }

    /// Writes an event of the brokers down, now.
    pub fn note_broker(&mut self, what: String) {
        let at_ms = super::pauses::now_ms();
        self.tally.broker.push(BrokerEvent { what, at_ms });
    }

    /// One look at everything: brings back what has been away for its time.
    pub fn tend(&mut self) {
        let now = Instant::now();
        let broker = self.cluster.node(self.broker.0);
        match self.broker.1 {
            State::Frozen { until } if until <= now => {
                broker.thaw();
                self.broker.1 = State::Up;
            }
            State::Down { until } if until <= now => {
                broker.start_again();
                self.broker.1 = State::Up;
            }
            _ => {}
        }
        for member in &mut self.members {
            member.tend(now, &self.folder, &mut self.tally);
        }
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Kill(_) => "kill -9 of",
        Fault::Freeze(_) => "freeze of",
        Fault::Terminate(_) => "end of",
    }
}

impl Member {
    fn strike(&mut self, fault: Fault) -> bool {
        // One that has just crashed is not there to be struck.
        if self.state != State::Up || self.process.ended().is_some() {
            return false;
        }
        let now = Instant::now();
        self.state = match fault {
            Fault::Kill(down) => {
                self.process.kill();
                State::Down { until: now + down }
            }
            Fault::Freeze(frozen) => {
                self.process.signal(Signal::SIGSTOP);
                let until = now + frozen;
                State::Frozen { until }
            }
            Fault::Terminate(down) => {
                self.process.signal(Signal::SIGTERM);
                let kill_at = now + END_WITHIN;
                State::Ending { down, kill_at }
            }
        };
        true
    }

    fn tend(&mut self, now: Instant, folder: &Path, tally: &mut Tally) {
        match self.state {
            State::Up => {
                if let Some(status) = self.process.ended() {
                    let crash = format!("{}, {status}", self.recipe.role);
                    *tally.crashes.entry(crash).or_default() += 1;
                    self.state = State::Down {
                        until: now + CRASH_PAUSE,
                    };
                }
            }
            State::Frozen { until } if until <= now => {
                self.process.signal(Signal::SIGCONT);
                self.state = State::Up;
            }
            State::Down { until } if until <= now => {
                self.process = self.recipe.start(folder);
                self.state = State::Up;
            }
            State::Ending { down, kill_at } => {
                let name = &self.recipe.name;
                if let Some(status) = self.process.ended() {
                    // Poison may abort it while it ends.
                    if !status.success() && status.code().is_some() {
                        let complaint = format!("{name} ended with {status} after SIGTERM");
                        tally.complaints.push(complaint);
                    }
                    self.state = State::Down { until: now + down };
                } else if kill_at <= now {
                    let complaint = format!("{name} did not end within {END_WITHIN:?} of SIGTERM");
                    tally.complaints.push(complaint);
                    self.process.kill();
                    self.state = State::Down { until: now + down };
                }
            }
            State::Frozen { .. } | State::Down { .. } => {}
        }
    }
}
