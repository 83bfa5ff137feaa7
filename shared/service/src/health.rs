//! `/livez`, `/readyz`, `/metrics`, `/logfilter` and `/profile` of a process.

pub(crate) mod keyed;
mod log_filter;

use std::net::SocketAddr;

use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use warp::{Filter, Reply, filters::BoxedFilter, http::StatusCode};

use crate::{
    AdminKey, ShellArgs, Shutdown,
    address::advertised,
    exit::Failure,
    metrics::Metrics,
    profile::{self, Profiles},
    telemetry,
};

/// Whether the process takes work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It does not, and why.
    NotReady(String),
}

/// What a process hears of the servers that do its work, if there are any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Why none of them takes work.
    pub down: Option<String>,
    /// What an operator should know although work is done; one line each.
    pub notes: Vec<String>,
}

/// The readiness of a process: written by its main loop, read by `/readyz`.
#[derive(Debug, Clone)]
pub struct Health {
    readiness: watch::Sender<Readiness>,
    /// A process without its broker takes no work, whatever it would like.
    connected: watch::Sender<bool>,
    /// Nor does one whose upstream is down.
    upstream: watch::Sender<Upstream>,
    /// Who wants to see inside.
    profiles: Profiles,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Not ready: starting.
    pub fn new() -> Self {
        Self {
            readiness: watch::Sender::new(Readiness::NotReady("starting".into())),
            connected: watch::Sender::new(true),
            upstream: watch::Sender::default(),
            profiles: Profiles::default(),
        }
    }

    /// The wishes that come to this process, for its engine.
    pub fn profiles(&self) -> Profiles {
        self.profiles.clone()
    }

    /// From now on it takes work.
    pub fn set_ready(&self) {
        self.readiness.send_replace(Readiness::Ready);
    }

    /// From now on it does not.
    pub fn set_not_ready(&self, reason: impl Into<String>) {
        self.readiness
            .send_replace(Readiness::NotReady(reason.into()));
    }

    /// It takes no work from the moment it is told to stop, although it still answers.
    pub fn end_with(&self, shutdown: &Shutdown) {
        let (told, health) = (shutdown.token.clone(), self.clone());
        shutdown.tracker.spawn(async move {
            told.cancelled().await;
            health.set_not_ready("stopping");
        });
    }

    /// It takes no work for this reason; or takes work again.
    pub fn set_quarantine(&self, reason: Option<&str>) {
        match reason {
            Some(reason) => self.set_not_ready(reason),
            None => self.set_ready(),
        }
    }

    /// Whether the broker is there; on top of the readiness set otherwise.
    pub fn set_connected(&self, connected: bool) {
        self.connected.send_replace(connected);
    }

    /// How its upstream is; on top of the readiness set otherwise.
    pub fn set_upstream(&self, upstream: Upstream) {
        self.upstream.send_replace(upstream);
    }

    /// As it is now.
    pub fn snapshot(&self) -> Readiness {
        if !*self.connected.borrow() {
            return Readiness::NotReady("the message broker is not connected".to_owned());
        }
        match (
            &*self.readiness.borrow(),
            self.upstream.borrow().down.clone(),
        ) {
            (Readiness::Ready, Some(down)) => Readiness::NotReady(down),
            (readiness, _) => readiness.clone(),
        }
    }

    /// What `/readyz` says of a process that is ready.
    fn ready_text(&self) -> String {
        let mut text = String::from("ready\n");
        for note in &self.upstream.borrow().notes {
            text.push_str(note);
            text.push('\n');
        }
        if telemetry::export_state().failing {
            text.push_str("traces: the collector takes no spans\n");
        }
        text
    }
}

/// What is open to everybody.
pub fn routes(health: Health, metrics: Metrics) -> BoxedFilter<(warp::reply::Response,)> {
    let livez = warp::path!("livez").map(|| "ok\n".into_response());
    let readyz = warp::path!("readyz").map(move || match health.snapshot() {
        Readiness::Ready => health.ready_text().into_response(),
        Readiness::NotReady(reason) => {
            warp::reply::with_status(format!("{reason}\n"), StatusCode::SERVICE_UNAVAILABLE)
                .into_response()
        }
    });
    let metrics = warp::path!("metrics").then(move || {
        let metrics = metrics.clone();
        async move { exposition(&metrics).await }
    });
    warp::get()
        .and(livez.or(readyz).unify().or(metrics).unify())
        .boxed()
}

/// What is measured, in OpenMetrics text.
async fn exposition(metrics: &Metrics) -> warp::reply::Response {
    match metrics.scrape().await {
        Ok(body) => {
            let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            warp::reply::with_header(body, "content-type", media_type).into_response()
        }
        Err(error) => {
            let text = format!("metrics cannot be written: {error}\n");
            warp::reply::with_status(text, StatusCode::INTERNAL_SERVER_ERROR).into_response()
        }
    }
}

/// Serves [`routes`] and, under its key, `/logfilter` and `/profile`, until `ended`; returns the address that others call.
///
/// What a stopping process still does is seen until then; only who asks for a profile is sent away at once.
pub async fn serve(
    shell: &ShellArgs,
    health: Health,
    metrics: Metrics,
    shutdown: &Shutdown,
    ended: &CancellationToken,
) -> Result<SocketAddr, Failure> {
    let (address, admin_key) = (shell.health_listen, shell.admin_key.clone());
    let failed = |error| Failure::Failed(format!("cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let told = advertised(bound, shell.advertise).map_err(|error| Failure::unusable(&error))?;
    if admin_key.as_ref().is_some_and(AdminKey::is_readable_by_all) {
        tracing::warn!("every user of this machine can read --admin-key-file");
    }
    let stop = ended.clone().cancelled_owned();
    let not_found = warp::any().map(|| StatusCode::NOT_FOUND.into_response());
    let stop_asking = shutdown.token.clone();
    let routes = routes(health.clone(), metrics)
        .or(log_filter::routes(admin_key.clone()))
        .unify()
        .or(profile::routes(health.profiles(), admin_key, stop_asking))
        .unify()
        .or(not_found)
        .unify();
    shutdown
        .tracker
        .spawn(warp::serve(routes).incoming(listener).graceful(stop).run());
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_told_to_stop_takes_no_work() {
        let (health, shutdown) = (Health::new(), Shutdown::default());
        health.set_ready();
        health.end_with(&shutdown);
        assert_eq!(health.snapshot(), Readiness::Ready);
        shutdown.token.cancel();
        shutdown.tracker.close();
        shutdown.tracker.wait().await;
        let stopping = Readiness::NotReady("stopping".to_owned());
        assert_eq!(health.snapshot(), stopping);
    }

    #[test]
    fn a_process_is_as_ready_as_what_it_needs() {
        let health = Health::new();
        let not_ready = |why: &str| Readiness::NotReady(why.to_owned());
        let upstream = |down: Option<&str>| Upstream {
            down: down.map(str::to_owned),
            notes: vec!["a note".to_owned()],
        };
        health.set_upstream(upstream(Some("down")));
        assert_eq!(health.snapshot(), not_ready("starting"));
        health.set_ready();
        assert_eq!(health.snapshot(), not_ready("down"));
        health.set_upstream(upstream(None));
        assert_eq!(health.snapshot(), Readiness::Ready);
        assert_eq!(health.ready_text(), "ready\na note\n");
        health.set_connected(false);
        assert!(matches!(health.snapshot(), Readiness::NotReady(_)));
    }
}
