//! `/livez`, `/readyz` and `/metrics` of a process.

use std::{net::SocketAddr, sync::Arc};

use prometheus_client::{encoding::text, registry::Registry};
use tokio::{net::TcpListener, sync::watch};
use warp::{Filter, Reply, filters::BoxedFilter, http::StatusCode};

use crate::Shutdown;

/// Whether the process takes work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It does not, and why.
    NotReady(String),
}

/// The readiness of a process: written by its main loop, read by `/readyz`.
#[derive(Debug, Clone)]
pub struct Health {
    readiness: watch::Sender<Readiness>,
    /// A process without its broker takes no work, whatever it would like.
    connected: watch::Sender<bool>,
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
        }
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

    /// As it is now.
    pub fn snapshot(&self) -> Readiness {
        if !*self.connected.borrow() {
            return Readiness::NotReady("the message broker is not connected".to_owned());
        }
        self.readiness.borrow().clone()
    }
}

/// The three routes.
pub fn routes(health: Health, metrics: Arc<Registry>) -> BoxedFilter<(warp::reply::Response,)> {
    let livez = warp::path!("livez").map(|| "ok\n".into_response());
    let readyz = warp::path!("readyz").map(move || match health.snapshot() {
        Readiness::Ready => "ready\n".into_response(),
        Readiness::NotReady(reason) => {
            warp::reply::with_status(format!("{reason}\n"), StatusCode::SERVICE_UNAVAILABLE)
                .into_response()
        }
    });
    let metrics = warp::path!("metrics").map(move || exposition(&metrics));
    warp::get()
        .and(livez.or(readyz).unify().or(metrics).unify())
        .boxed()
}

/// The registry in OpenMetrics text.
fn exposition(registry: &Registry) -> warp::reply::Response {
    let mut body = String::new();
    match text::encode(&mut body, registry) {
        Ok(()) => {
            let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            warp::reply::with_header(body, "content-type", media_type).into_response()
        }
        Err(error) => {
            let text = format!("metrics cannot be written: {error}\n");
            warp::reply::with_status(text, StatusCode::INTERNAL_SERVER_ERROR).into_response()
        }
    }
}

/// Serves [`routes`] on `address` until shutdown; returns the address it got.
pub async fn serve(
    address: SocketAddr,
    health: Health,
    metrics: Registry,
    shutdown: &Shutdown,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let stop = shutdown.token.clone().cancelled_owned();
    let not_found = warp::any().map(|| StatusCode::NOT_FOUND.into_response());
    let routes = routes(health, Arc::new(metrics)).or(not_found).unify();
    shutdown
        .tracker
        .spawn(warp::serve(routes).incoming(listener).graceful(stop).run());
    Ok(bound)
}
