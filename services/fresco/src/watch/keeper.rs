//! Keeps the streams, consumers and buckets of a deployment on its broker.

use std::{collections::BTreeSet, fmt, time::Duration};

use messaging::{Bus, Upkeep};
use protocol::topology::Topology;
use tokio::time::sleep;

/// How often the broker is looked at. A queue whose consumer was deleted stands still, so it is a short time; a look
/// is a dozen requests of a millisecond.
const PERIOD: Duration = Duration::from_secs(5);
/// After a look that failed: a broker that has just started refuses for a moment.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Goes on for ever: after each connection anew (somebody may have emptied the broker's store) and every 5 s. `tell`
/// hears what was created and, once, what differs.
pub async fn keep(bus: &Bus, topology: &Topology, mut tell: impl FnMut(&News)) {
    let mut connection = bus.connection();
    let mut told = Told::default();
    loop {
        bus.connected().await;
        let epoch = connection.borrow_and_update().epoch;
        let pause = match bus.keep(topology).await {
            Ok(upkeep) => {
                told.news(&upkeep).iter().for_each(&mut tell);
                PERIOD
            }
            Err(error) => {
                tracing::debug!(%error, "streams could not be looked at");
                RETRY_PAUSE
            }
        };
        let reconnected = connection.wait_for(|now| now.up && now.epoch > epoch);
        tokio::select! {
            // The sender lives as long as `bus`.
            _ = reconnected => {}
            () = sleep(pause) => {}
        }
    }
}

/// What is worth telling of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It was missing.
    Created(String),
    /// Somebody has to change it, or say otherwise what it is to be.
    Differs(String),
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Created(name) => write!(f, "{name} was missing: created"),
            Self::Differs(difference) => write!(f, "{difference}; left as it is"),
        }
    }
}

/// The differences that were told last.
#[derive(Debug, Default)]
struct Told(BTreeSet<String>);

impl Told {
    /// What is to be said about a look.
    fn news(&mut self, upkeep: &Upkeep) -> Vec<News> {
        let created = upkeep.created.iter().cloned();
        let mut news: Vec<_> = created.map(News::Created).collect();
        let differing: BTreeSet<_> = upkeep.differing.iter().map(ToString::to_string).collect();
        let fresh = differing.difference(&self.0);
        news.extend(fresh.cloned().map(News::Differs));
        self.0 = differing;
        news
    }
}

#[cfg(test)]
mod tests {
    use messaging::{Difference, ProvisionError};

    use super::*;

    fn differing(name: &str) -> Upkeep {
        let difference = Difference {
            field: "max_age".to_owned(),
            wanted: "1".to_owned(),
            found: "2".to_owned(),
            knob: None,
        };
        let (name, differences) = (name.to_owned(), vec![difference]);
        Upkeep {
            created: Vec::new(),
            differing: vec![ProvisionError::Differs { name, differences }],
        }
    }

    #[test]
    fn a_difference_is_told_once_until_it_was_gone() {
        let mut told = Told::default();
        assert_eq!(told.news(&Upkeep::default()), []);
        assert_eq!(told.news(&differing("a")).len(), 1);
        assert_eq!(told.news(&differing("a")), []);
        assert_eq!(told.news(&differing("b")).len(), 1);
        assert_eq!(told.news(&Upkeep::default()), []);
        assert_eq!(told.news(&differing("b")).len(), 1);
    }

    #[test]
    fn what_is_created_is_told_each_time() {
        let created = Upkeep {
            created: vec!["stream a".to_owned()],
            differing: Vec::new(),
        };
        let mut told = Told::default();
        for _ in 0..2 {
            assert_eq!(told.news(&created), [News::Created("stream a".to_owned())]);
        }
    }
}
