//! The thin loop around [`Absences::apply`]: hears the broker's events and gives back for the dead.

use messaging::{Access, Bus, BusError, SystemEvent, SystemWatch};
use service::without_credentials;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    absence::{Absences, Action, Event},
    give_back::give_back_for,
};

/// After this a system account that cannot be reached is told; a broker that only starts is there sooner.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// From a system account that cannot be used until it is tried again: somebody may have put its credentials there.
const AGAIN_AFTER: std::time::Duration = std::time::Duration::from_secs(5);

/// Watches for as long as the process runs. A system account that cannot be used is told, and tried again: what the dead held
/// waits for its ack deadline meanwhile, and nothing else.
pub async fn keep_watching(bus: &Bus, urls: &[String], access: &Access, tell: impl Fn(&str)) {
    let mut told = String::new();
    loop {
        let reason = match watch(bus, urls, access, &tell).await {
            Ok(()) => "its connection has ended".to_owned(),
            Err(error) => service::exit::chain(&error),
        };
        if told != reason {
            tell(&format!(
                "no system account: {reason}; jobs of dead workers wait for their ack deadline"
            ));
            told = reason;
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Watches the deployment of `bus` from the system account at `urls`, until the connection is closed for good. `tell` hears
/// that there is none yet.
pub async fn watch(
    bus: &Bus,
    urls: &[String],
    access: &Access,
    tell: impl Fn(&str),
) -> Result<(), BusError> {
    let mut system = SystemWatch::connect(urls, access, bus.prefix().clone()).await?;
    let (mut absences, mut patience) = (Absences::default(), Some(Instant::now() + PATIENCE));
    loop {
        let event = tokio::select! {
            // Events first: some came while the last one's work was given back, and who is back is not dead.
            biased;
            event = system.next() => match event {
                Some(SystemEvent::Connected(worker, connection)) => {
                    Event::Connected(worker, connection)
                }
                Some(SystemEvent::Disconnected(worker, connection)) => {
                    Event::Disconnected(worker, connection)
                }
                Some(SystemEvent::Blind) => Event::Blind,
                Some(SystemEvent::Watching) => {
                    patience = None;
                    tracing::info!("watching the connections of workers");
                    continue;
                }
                None => return Ok(()),
            },
            () = until(absences.next_timer()) => Event::Timer,
            () = until(patience) => {
                patience = None;
                let shown: Vec<_> = urls.iter().map(|url| without_credentials(url)).collect();
                tell(&format!(
                    "no system account at {} yet: its address and credentials are tried on", shown.join(", ")
                ));
                continue;
            }
        };
        let Some(Action::GiveBackFor(worker)) = absences.apply(event, Instant::now()) else {
            continue;
        };
        if let Err(error) = give_back_for(bus, &worker).await {
            tracing::warn!(%worker, %error, "what it held waits for its ack deadline");
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
