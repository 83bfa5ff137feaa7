//! Which fault strikes what, and when: a pure function of a seed, so that a failing run can be run again.

use std::time::Duration;

use protocol::Role;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// What a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// A process: the role and the number of it.
    Process(Role, usize),
    /// The broker. In a cluster: the leader, then, of one of the streams, by turns.
    Broker,
}

/// What happens to it. It always comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// kill -9, and a new start after this.
    Kill(Duration),
    /// SIGSTOP, and SIGCONT after this.
    Freeze(Duration),
    /// SIGTERM, and a new start this long after its end.
    Terminate(Duration),
}

/// One line of the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// Since the start.
    pub at: Duration,
    /// What.
    pub target: Target,
    /// How.
    pub fault: Fault,
}

impl Strike {
    /// When the target can be struck again.
    fn over(&self) -> Duration {
        let lasts = match self.fault {
            Fault::Kill(down) => down,
            Fault::Freeze(frozen) => frozen,
            Fault::Terminate(down) => down + TERMINATE_MAX,
        };
        self.at + lasts + REST
    }
}

/// A process told to end has its grace period of 4 s for it.
const TERMINATE_MAX: Duration = Duration::from_secs(5);

/// What came back gets this long to do some work before it is struck again.
const REST: Duration = Duration::from_millis(800);

/// What a plan is made from.
#[derive(Debug, Clone)]
pub struct PlanConfig {
    /// Decides everything.
    pub seed: u64,
    /// Kills and freezes of processes; terminations are a quarter more.
    pub faults: usize,
    /// Kills of the broker; freezes of it are half as many more.
    pub broker_kills: usize,
    /// The last strike comes before this, if the targets have rests enough.
    pub lasts: Duration,
    /// Of the queues: a worker is frozen for once to twice this.
    pub ack_wait: Duration,
    /// Processes of each role.
    pub processes: Vec<(Role, usize)>,
}

/// The script: in the order of time, and no target is struck while it is still struck.
pub fn plan(config: &PlanConfig) -> Vec<Strike> {
    let mut chance = StdRng::seed_from_u64(config.seed);
    let mut cards = cards(config);
    cards.shuffle(&mut chance);
    let gap = config.lasts / u32::try_from(cards.len().max(1)).unwrap_or(u32::MAX);
    let mut strikes: Vec<Strike> = Vec::with_capacity(cards.len());
    let mut slot = Duration::ZERO;
    for (role, kind) in cards {
        let at = slot + gap.mul_f64(chance.random());
        slot += gap;
        let free = |target: Target| {
            let last = strikes.iter().filter(|strike| strike.target == target);
            last.map(Strike::over).max().unwrap_or_default()
        };
        let target = target(config, role, at, free, &mut chance);
        strikes.push(Strike {
            at: at.max(free(target)),
            target,
            fault: fault(config, target, kind, &mut chance),
        });
    }
    strikes.sort_by_key(|strike| strike.at);
    strikes
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Kill,
    Freeze,
    Terminate,
}

/// Every strike without its time. Dealt, not drawn, so that every role gets its share of every kind in every run.
fn cards(config: &PlanConfig) -> Vec<(Option<Role>, Kind)> {
    let roles: Vec<Role> = config.processes.iter().map(|(role, _)| *role).collect();
    let role = |card: usize| Some(roles[card % roles.len()]);
    let process = (0..config.faults).map(|card| {
        let killed = (card / roles.len()).is_multiple_of(2);
        (role(card), if killed { Kind::Kill } else { Kind::Freeze })
    });
    let ended = (0..config.faults / 4).map(|card| (role(card), Kind::Terminate));
    let broker = (0..config.broker_kills).map(|_| (None, Kind::Kill));
    let frozen = (0..config.broker_kills / 2).map(|_| (None, Kind::Freeze));
    process.chain(ended).chain(broker).chain(frozen).collect()
}

/// One of the role's processes that can be struck now, or the one that can be struck soonest.
fn target(
    config: &PlanConfig,
    role: Option<Role>,
    at: Duration,
    free: impl Fn(Target) -> Duration,
    chance: &mut StdRng,
) -> Target {
    let Some(role) = role else {
        return Target::Broker;
    };
    let of = config.processes.iter().find(|(of, _)| *of == role);
    let count = of.map_or(1, |(_, count)| *count);
    let targets: Vec<Target> = (0..count).map(|i| Target::Process(role, i)).collect();
    let ready: Vec<_> = targets
        .iter()
        .filter(|target| free(**target) <= at)
        .collect();
    match ready.len() {
        0 => targets.into_iter().min_by_key(|target| free(*target)),
        count => ready
            .get(chance.random_range(0..count))
            .map(|target| **target),
    }
    .expect("a role has a process")
}

fn fault(config: &PlanConfig, target: Target, kind: Kind, chance: &mut StdRng) -> Fault {
    let mut between =
        |least: f64, most: f64| Duration::from_secs_f64(chance.random_range(least..most));
    let ack_wait = config.ack_wait.as_secs_f64();
    match (target, kind) {
        (Target::Broker, Kind::Freeze) => Fault::Freeze(between(1.0, 4.0)),
        (Target::Broker, _) => Fault::Kill(between(0.2, 2.0)),
        (Target::Process(..), Kind::Kill) => Fault::Kill(between(0.0, 1.0)),
        (Target::Process(..), Kind::Freeze) => Fault::Freeze(between(ack_wait, 2.0 * ack_wait)),
        (Target::Process(..), Kind::Terminate) => Fault::Terminate(between(0.0, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn config(seed: u64, faults: usize, broker_kills: usize, lasts_s: u64) -> PlanConfig {
        PlanConfig {
            seed,
            faults,
            broker_kills,
            lasts: Duration::from_secs(lasts_s),
            ack_wait: Duration::from_secs(2),
            processes: vec![
                (Role::Gateway, 2),
                (Role::ArBatcher, 2),
                (Role::Denoiser, 4),
            ],
        }
    }

    proptest! {
        #[test]
        fn a_seed_is_a_plan(seed: u64, faults in 0_usize..60, brokers in 0_usize..6, lasts in 1_u64..100) {
            let config = config(seed, faults, brokers, lasts);
            prop_assert_eq!(plan(&config), plan(&config));
        }

        #[test]
        fn a_plan_has_as_many_strikes_as_asked_for(seed: u64, faults in 0_usize..60, brokers in 0_usize..6) {
            let plan = plan(&config(seed, faults, brokers, 30));
            let of = |wanted: fn(&Strike) -> bool| plan.iter().filter(|strike| wanted(strike)).count();
            let broker = |strike: &Strike| strike.target == Target::Broker;
            prop_assert_eq!(of(|s| s.target == Target::Broker && matches!(s.fault, Fault::Kill(_))), brokers);
            prop_assert_eq!(of(|s| matches!(s.fault, Fault::Terminate(_))), faults / 4);
            let struck = plan.iter().filter(|s| !broker(s) && !matches!(s.fault, Fault::Terminate(_))).count();
            prop_assert_eq!(struck, faults);
        }

        #[test]
        fn nothing_is_struck_while_it_is_struck(seed: u64, faults in 0_usize..60, brokers in 0_usize..6) {
            let plan = plan(&config(seed, faults, brokers, 20));
            prop_assert!(plan.is_sorted_by_key(|strike| strike.at));
            for (i, strike) in plan.iter().enumerate() {
                let next = plan[i + 1..].iter().find(|later| later.target == strike.target);
                prop_assert!(next.is_none_or(|next| next.at >= strike.over()), "{strike:?} {next:?}");
            }
        }

        #[test]
        fn every_role_is_killed_frozen_and_ended(seed: u64) {
            let plan = plan(&config(seed, 24, 0, 20));
            for role in [Role::Gateway, Role::ArBatcher, Role::Denoiser] {
                let own = |s: &&Strike| matches!(s.target, Target::Process(of, _) if of == role);
                let kinds: Vec<_> = plan.iter().filter(own).map(|s| std::mem::discriminant(&s.fault)).collect();
                for fault in [Fault::Kill(REST), Fault::Freeze(REST), Fault::Terminate(REST)] {
                    prop_assert!(kinds.contains(&std::mem::discriminant(&fault)), "{role} {fault:?}");
                }
            }
        }
    }
}
