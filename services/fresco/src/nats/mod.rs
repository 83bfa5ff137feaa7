//! `fresco nats`: sets up and checks what a deployment needs on its broker.

mod keys;

use std::time::Duration;

use messaging::{
    Access, Bus, BusConfig, Change, Difference, Finding, ProvisionError, State, Wanted,
};
use protocol::{
    Role,
    limits::PRESENCE_TTL,
    topology::{Topology, TopologyOptions},
};
use service::{BusArgs, exit::Failure};
use tokio::time::timeout;

use crate::{args::NatsCommand, terminal};

/// The credential of whoever gives back what the dead held, `fresco watch` and `fresco up`. Its inboxes are its own: it is on
/// every machine, and an operator's hold prompts.
pub(crate) const WATCHER: &str = "watcher";

/// The credential of who may change streams: nobody's but for the moment of a change, so that its inboxes are its own too.
const ADMIN: &str = "admin";

/// A broker is there or is not; an operator does not want to wait for one.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Carries out one of its commands.
pub(crate) async fn run(command: NatsCommand) -> Result<(), Failure> {
    match command {
        NatsCommand::Init { bus, topology } => init(&bus, topology.options()).await,
        NatsCommand::Check { bus, wanted } => check(&bus, wanted.wanted()).await,
        NatsCommand::Change { bus, wanted } => change(&bus, wanted.wanted()).await,
        NatsCommand::Keys { out } => keys::make(&out),
    }
}

async fn init(args: &BusArgs, options: TopologyOptions) -> Result<(), Failure> {
    let bus = connect(args).await?;
    let made = bus.complete(&Topology::with(&args.prefix, options)).await;
    let made = made.map_err(|error| Failure::failed(&error))?;
    let mut refused = made.differing.iter();
    if let Some(unsaid) = refused.find(|why| matches!(why, ProvisionError::Unsaid { .. })) {
        return Err(Failure::failed(unsaid));
    }
    // What differs is told with all else.
    let wanted = Wanted {
        ack_wait: Some(options.ack_wait),
        result_ttl: Some(options.result_ttl),
        replicas: options.replicas,
    };
    let told = tell(&bus, wanted).await;
    bus.close().await;
    told
}

async fn check(args: &BusArgs, wanted: Wanted) -> Result<(), Failure> {
    let bus = connect(args).await?;
    let told = tell(&bus, wanted).await;
    bus.close().await;
    told
}

async fn change(args: &BusArgs, wanted: Wanted) -> Result<(), Failure> {
    let bus = connect_as(args, ADMIN).await?;
    let shown = bus.processes_shown().await;
    match shown.map_err(|error| Failure::failed(&error))? {
        0 => {}
        shown => {
            return Err(Failure::Failed(format!(
                "{shown} processes of the deployment are there: stop all but the broker, and wait {} s for those that were killed",
                PRESENCE_TTL.as_secs()
            )));
        }
    }
    let mut changes = Vec::new();
    let changed = bus.change(wanted, &mut changes).await;
    for change in &changes {
        let name = change.name();
        match change {
            Change::Unanswered(_) => terminal::say(format_args!(
                "{name} was to be changed, and the broker has not said whether it was"
            )),
            Change::Changed(_) => terminal::say(format_args!("{name} was changed")),
            Change::Removed(_) => terminal::say(format_args!(
                "{name} was to be made anew, and may be gone: `fresco nats init` makes it"
            )),
            Change::Emptied(_) => terminal::say(format_args!("{name} was made anew, empty")),
        }
    }
    changed.map_err(|error| Failure::failed(&error))?;
    let told = tell(&bus, wanted).await;
    bus.close().await;
    told
}

/// Says how everything is; what is not as it should be is a failure.
async fn tell(bus: &Bus, wanted: Wanted) -> Result<(), Failure> {
    let findings = bus.inspect(wanted).await;
    let findings = findings.map_err(|error| Failure::failed(&error))?;
    report(&findings).iter().for_each(terminal::say);
    let count = |state: fn(&State) -> bool| {
        findings
            .iter()
            .filter(|finding| state(&finding.state))
            .count()
    };
    let missing = count(|state| *state == State::Missing);
    let differ = count(|state| matches!(state, State::Differs(_)));
    match (missing, differ) {
        (0, 0) => Ok(()),
        (_, 0) => Err(Failure::Failed(format!(
            "{missing} missing: run `fresco nats init`"
        ))),
        _ => Err(Failure::Failed(format!(
            "{differ} with other settings and {missing} missing; left as they are"
        ))),
    }
}

/// A line for what is as it should be; for what is not, a diff from what is there to what is wanted.
fn report(findings: &[Finding]) -> Vec<String> {
    let mut lines = Vec::new();
    for Finding { name, state } in findings {
        match state {
            State::AsWanted => lines.push(format!("{name} is as it should be")),
            State::Missing => lines.push(format!("{name} is missing")),
            State::Differs(differences) => {
                lines.push(format!("{name} differs:"));
                for Difference {
                    field,
                    found,
                    wanted,
                    knob,
                } in differences
                {
                    let flag = knob.map(|knob| format!(" ({})", knob.flag()));
                    lines.push(format!("  - {field}: {found}"));
                    lines.push(format!("  + {field}: {wanted}{}", flag.unwrap_or_default()));
                }
            }
        }
    }
    lines
}

/// Who the command line is to the broker.
pub(crate) fn access(args: &BusArgs) -> Access {
    Access::files(args.nats_credentials.as_ref(), args.nats_ca.as_ref())
}

/// A connection to a broker that is there.
pub(crate) async fn connect(args: &BusArgs) -> Result<Bus, Failure> {
    let config = BusConfig::new(args.nats_urls.clone(), args.prefix.clone(), Role::Operator);
    connect_with(args, config).await
}

async fn connect_as(args: &BusArgs, inbox: &str) -> Result<Bus, Failure> {
    let config = BusConfig::new(args.nats_urls.clone(), args.prefix.clone(), Role::Operator);
    connect_with(args, config.with_inbox(inbox)).await
}

async fn connect_with(args: &BusArgs, config: BusConfig) -> Result<Bus, Failure> {
    let config = config.with_access(access(args));
    let role = config.inbox.clone();
    let bus = Bus::connect(&config)
        .await
        .map_err(|error| Failure::unusable(&error))?;
    let connected = timeout(CONNECT_MAX, bus.connected()).await;
    connected.map_err(|_| {
        Failure::Failed(format!(
            "--nats-url {}: no NATS server answers there that we believe and that lets us in",
            shown(&args.nats_urls)
        ))
    })?;
    // Where answers come to is a role's own, and refused to the others at their first request, whatever it asks for.
    tokio::select! {
        biased;
        refusal = bus.refused() => Err(Failure::Unusable(format!(
            "--nats-credentials has to be {role}.nk: with another one the message broker says {refusal:?}"
        ))),
        _ = bus.processes_shown() => Ok(bus),
    }
}

/// Broker URLs for people: without credentials.
pub(crate) fn shown(urls: &[String]) -> String {
    let urls = urls.iter().map(|url| service::without_credentials(url));
    urls.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use messaging::Knob;

    use super::*;

    #[test]
    fn a_difference_is_shown_as_a_diff() {
        let finding = |name: &str, state| Finding {
            name: name.to_owned(),
            state,
        };
        let difference = |field: &str, wanted: &str, found: &str, knob| Difference {
            field: field.to_owned(),
            wanted: wanted.to_owned(),
            found: found.to_owned(),
            knob,
        };
        let differences = vec![
            difference("max_age", "2 h", "4 h", Some(Knob::ResultTtl)),
            difference("max_msgs", "20000", "7", None),
        ];
        let findings = [
            finding("stream fresco-AR", State::Differs(differences)),
            finding("bucket fresco-jobs", State::Missing),
            finding("consumer fresco-DN/all", State::AsWanted),
        ];
        let lines = [
            "stream fresco-AR differs:",
            "  - max_age: 4 h",
            "  + max_age: 2 h (--result-ttl-s)",
            "  - max_msgs: 7",
            "  + max_msgs: 20000",
            "bucket fresco-jobs is missing",
            "consumer fresco-DN/all is as it should be",
        ];
        assert_eq!(report(&findings), lines);
    }
}
