//! Whether the SRT servers take work, for `/readyz`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use service::{Health, Shutdown, Upstream};

use super::{SrtEngine, client::SrtClient};

/// Between two probes of a server. SRT's check runs a token through its model when nothing else does.
const PROBE_PERIOD: Duration = Duration::from_secs(5);

/// What is known of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Nothing yet.
    Unknown,
    /// It takes no work, and why.
    Down(String),
    /// It takes work; whether seeds count there, if it tells.
    Up(Option<bool>),
}

/// Keeps `health` told of the servers until shutdown.
pub(crate) fn watch_servers(engines: &[SrtEngine], health: &Health, shutdown: &Shutdown) {
    let unknown = |engine: &SrtEngine| (engine.client.url().to_string(), State::Unknown);
    let states: Vec<_> = engines.iter().map(unknown).collect();
    health.set_upstream(upstream(&states));
    let states = Arc::new(Mutex::new(states));
    for (index, engine) in engines.iter().enumerate() {
        let (client, states, health) = (engine.client.clone(), Arc::clone(&states), health.clone());
        let tell = move |state: State| {
            let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
            states[index].1 = state;
            health.set_upstream(upstream(&states));
        };
        let stop = shutdown.token.clone();
        let probes = async move { stop.run_until_cancelled(probe(client, tell)).await };
        shutdown.tracker.spawn(probes);
    }
}

async fn probe(client: SrtClient, tell: impl Fn(State)) {
    let mut known = State::Unknown;
    loop {
        let state = match (client.health().await, &known) {
            (Err(why), _) => State::Down(why),
            // Its flags change with a restart only.
            (Ok(()), State::Up(Some(seeds))) => State::Up(Some(*seeds)),
            (Ok(()), _) => State::Up(client.is_deterministic().await),
        };
        if state != known {
            let url = client.url();
            match &state {
                State::Down(why) => tracing::warn!(%url, why, "SRT server is down"),
                State::Up(seeds) => tracing::info!(%url, ?seeds, "SRT server is up"),
                State::Unknown => {}
            }
            known = state.clone();
            tell(state);
        }
        tokio::time::sleep(PROBE_PERIOD).await;
    }
}

/// What an operator is told of servers in these states.
fn upstream(states: &[(String, State)]) -> Upstream {
    let line = |(url, state): &(String, State)| {
        let state = match state {
            State::Unknown => "was not asked yet".to_owned(),
            State::Down(why) => format!("is down ({why})"),
            State::Up(Some(true)) => "is up, sampling_seed counts".to_owned(),
            State::Up(Some(false)) => {
                "is up; sampling_seed does not count without --enable-deterministic-inference"
                    .to_owned()
            }
            State::Up(None) => {
                "is up; sampling_seed counts only if it runs with --enable-deterministic-inference"
                    .to_owned()
            }
        };
        format!("SRT server {url} {state}")
    };
    let lines: Vec<String> = states.iter().map(line).collect();
    let any_up = states
        .iter()
        .any(|(_, state)| matches!(state, State::Up(_)));
    Upstream {
        down: (!any_up).then(|| format!("no SRT server is up: {}", lines.join("; "))),
        notes: lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(states: &[State]) -> Upstream {
        let named = (0..).map(|i| format!("http://h:{i}"));
        let states: Vec<_> = named.zip(states.iter().cloned()).collect();
        upstream(&states)
    }

    #[test]
    fn one_server_that_is_up_is_enough() {
        let down = || State::Down("refused".to_owned());
        for (states, ready) in [
            (vec![State::Unknown], false),
            (vec![down(), down()], false),
            (vec![down(), State::Up(None)], true),
            (vec![State::Up(Some(false)), State::Unknown], true),
        ] {
            let told = told(&states);
            assert_eq!(told.down.is_none(), ready, "{told:?}");
            assert_eq!(told.notes.len(), states.len(), "a line for each");
        }
    }

    #[test]
    fn every_server_is_named_with_its_trouble_and_whether_seeds_count() {
        let none = told(&[State::Down("refused".to_owned()), State::Unknown]).down;
        let none = none.expect("none is up");
        for part in ["http://h:0 is down (refused)", "http://h:1 was not asked"] {
            assert!(none.contains(part), "{none}");
        }
        let flag = "--enable-deterministic-inference";
        for (seeds, named) in [(Some(true), false), (Some(false), true), (None, true)] {
            let note = told(&[State::Up(seeds)]).notes.concat();
            assert_eq!(note.contains(flag), named, "{note}");
        }
    }
}
