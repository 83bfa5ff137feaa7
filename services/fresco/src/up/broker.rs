//! Asks the broker that we started whether it is well, and tells the supervisor when it hangs: nothing moves then, and nobody
//! else would end it. `pulse` decides.

use std::{net::SocketAddr, time::Duration};

use futures::future::join;
use reqwest::{Client, Response};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    checkup::{PERIOD, client},
    fleet::BROKER,
    pulse::{Action, Answer, Pulse, Question},
    roster::{self, Member},
    supervisor::Event,
    ticks::Ticks,
};
use crate::terminal;

/// For so long one that was well may say that it is not. A stream that could not write once, because the disk was full,
/// refuses everything until its server is started again (2.15.1 does), also when there is room; so that as long as there is
/// none, it is started anew once a minute. A disk that stands still for less costs nobody the broker.
const UNWELL_MAX: Duration = Duration::from_secs(60);

/// Whether the server answers at all: asks no stream, each of which waits for the disk while it writes.
const ALIVE: &str = "healthz?js-enabled-only=true";

/// Whether each stream is well too.
const WELL: &str = "healthz";

/// Who asks.
#[derive(Debug)]
pub(crate) struct Broker {
    /// Where it answers.
    monitor: SocketAddr,
    roster: watch::Receiver<Vec<Member>>,
    /// To the supervisor.
    events: mpsc::Sender<Event>,
    /// [`UNWELL_MAX`].
    unwell_max: Duration,
}

impl Broker {
    /// Of the one that answers at `monitor`.
    pub(crate) fn new(
        monitor: SocketAddr,
        roster: &watch::Receiver<Vec<Member>>,
        events: &mpsc::Sender<Event>,
    ) -> Self {
        Self {
            monitor,
            roster: roster.clone(),
            events: events.clone(),
            unwell_max: UNWELL_MAX,
        }
    }

    /// Looks after it until the supervisor is gone.
    pub(crate) async fn watch(self) {
        let client = match client(PERIOD) {
            Ok(client) => client,
            Err(error) => return tracing::error!(%error, "the broker is not looked after"),
        };
        let (mut pulse, mut told) = (Pulse::unwell_at_most(self.unwell_max), None);
        let mut ticks = Ticks::new(PERIOD, &self.events);
        while ticks.next().await {
            let running = || roster::running(&self.roster.borrow(), BROKER);
            let Some((id, process)) = running() else {
                continue;
            };
            let (answer, reason) = self.ask(&client).await;
            // The answer of the one before tells nothing of its successor.
            if running() != Some((id, process)) {
                continue;
            }
            // Once in each of its lives, and not of its start.
            if let Some(reason) = reason
                && pulse.question(process) == Question::Alive
                && told.replace(process) != Some(process)
            {
                terminal::note(format_args!("{BROKER} is not well: {reason}"));
            }
            if let Some(Action::End) = pulse.apply(process, answer, Instant::now()) {
                self.events.send(Event::Hung(id)).await.ok();
            }
        }
    }

    /// How it is, and why it is not well where it says so.
    async fn ask(&self, client: &Client) -> (Answer, Option<String>) {
        let ask = |question| {
            client
                .get(format!("http://{}/{question}", self.monitor))
                .send()
        };
        let (alive, well) = join(ask(ALIVE), ask(WELL)).await;
        let answer = verdict(Answer::of(&alive), Answer::of(&well));
        match well {
            Ok(well) if answer == Answer::No => (answer, reason(well).await),
            _ => (answer, None),
        }
    }
}

/// How it is, by what it answered for itself and for all of its streams.
fn verdict(alive: Answer, well: Answer) -> Answer {
    match (alive, well) {
        (Answer::Yes, Answer::Yes) => Answer::Yes,
        (Answer::Silence, _) => Answer::Silence,
        (Answer::Yes | Answer::No, _) => Answer::No,
    }
}

/// The server's words of why it is not well.
async fn reason(answer: Response) -> Option<String> {
    let body: serde_json::Value = answer.json().await.ok()?;
    Some(body["error"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::timeout};

    use super::*;
    use crate::up::{
        checkup::falls_ill,
        supervisor::{ChildId, Layer},
    };

    #[test]
    fn a_broker_that_answers_for_itself_alone_is_unwell_and_no_silence() {
        use Answer::{No, Silence, Yes};
        for (alive, well, verdict) in [
            (Yes, Yes, Yes),
            (Yes, No, No),
            // Its disk stands still.
            (Yes, Silence, No),
            // It has just started.
            (No, No, No),
            (No, Silence, No),
            (Silence, Silence, Silence),
        ] {
            assert_eq!(super::verdict(alive, well), verdict, "{alive:?} {well:?}");
        }
    }

    #[tokio::test]
    async fn a_broker_that_was_well_and_is_not_for_too_long_hangs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let monitor = listener.local_addr().expect("it is bound");
        let id = ChildId(0);
        let member = Member {
            id,
            name: BROKER.to_owned(),
            layer: Layer::Broker,
            process: Some(7),
        };
        let (_roster, members) = watch::channel(vec![member]);
        let (events, mut told) = mpsc::channel(8);
        let mut broker = Broker::new(monitor, &members, &events);
        broker.unwell_max = Duration::from_millis(1);
        let heard = async {
            let wait = timeout(Duration::from_secs(60), told.recv());
            let wanted = Some(Event::Hung(id));
            assert_eq!(wait.await.expect("it is told of"), wanted);
        };
        tokio::select! {
            () = heard => {}
            () = broker.watch() => panic!("nobody looks after it"),
            // Both questions of the first look.
            () = falls_ill(listener, 2) => panic!("it ended"),
        }
    }
}
