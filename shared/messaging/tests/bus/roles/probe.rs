//! A connection past our own code.

use async_nats::{ConnectOptions, Event};
use tokio::sync::mpsc;

use super::Site;
use crate::site::within;

/// A connection that hears what it is refused.
pub(super) struct Probe {
    role: String,
    client: async_nats::Client,
    refusals: mpsc::Receiver<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verb {
    Publish,
    Subscribe,
}

impl Probe {
    pub(super) async fn connect(site: &Site, role: &str) -> Self {
        let access = site.secrets.access(role);
        let seed = std::fs::read_to_string(access.credentials.unwrap()).unwrap();
        let (tell, refusals) = mpsc::channel(16);
        let options = ConnectOptions::with_nkey(seed)
            .add_root_certificates(access.ca.unwrap())
            .require_tls(true)
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    tell.try_send(error.to_string()).expect("somebody listens");
                }
                std::future::ready(())
            });
        let client = within(role, options.connect(site.nodes[0].url())).await;
        let client = client.expect("the credential is good");
        let role = role.to_owned();
        Self {
            role,
            client,
            refusals,
        }
    }

    /// Does what it may. A refusal would be the next that [`Probe::violates`] hears.
    #[expect(clippy::disallowed_methods, reason = "what the server says is told")]
    pub(super) async fn does(&self, verb: Verb, subject: &str) {
        let subject = subject.to_owned();
        match verb {
            Verb::Publish => self.client.publish(subject, "".into()).await.unwrap(),
            // Kept alive by the client until a refusal would have come.
            Verb::Subscribe => drop(self.client.subscribe(subject).await.unwrap()),
        }
    }

    /// Asks at `subject`, for the answer to go to `reply`.
    #[expect(clippy::disallowed_methods, reason = "nobody waits for the answer")]
    pub(super) async fn asks_for_another(&self, subject: &str, reply: &str) {
        let (subject, reply) = (subject.to_owned(), reply.to_owned());
        let asked = self.client.publish_with_reply(subject, reply, "".into());
        asked.await.unwrap();
    }

    /// Does it, and holds the next refusal to it.
    pub(super) async fn violates(&mut self, verb: Verb, subject: &str) {
        self.does(verb, subject).await;
        let what = format!("{} is refused {subject}", self.role);
        let told = within(&what, self.refusals.recv()).await.unwrap();
        let told = told.to_lowercase();
        let kind = match verb {
            Verb::Publish => "publish",
            Verb::Subscribe => "subscription",
        };
        let wanted = format!("{kind} to \"{}\"", subject.to_lowercase());
        assert!(told.contains(&wanted), "{what}: {told}");
    }
}
