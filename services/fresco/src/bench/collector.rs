//! A collector that takes whatever spans come and only counts: what tracing costs a fleet, and not what keeping costs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use service::exit::Failure;
use tokio::net::TcpListener;
use warp::{Filter, Reply};

/// Largest body of an export, in bytes: a batch of 512 spans is a fraction of it.
const BODY_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Listens; serves within [`Collector::serve`].
pub(crate) struct Collector {
    listener: TcpListener,
    batches: Batches,
}

/// How many batches of spans have come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batches(Arc<AtomicU64>);

impl Batches {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Collector {
    pub(crate) async fn bind() -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        Ok(Self {
            listener: listener.map_err(|error| Failure::failed(&error))?,
            batches: Batches::default(),
        })
    }

    /// For `--otlp-endpoint`.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        let address = self.listener.local_addr();
        let address = address.map_err(|error| Failure::failed(&error))?;
        Ok(format!("http://{address}"))
    }

    pub(crate) fn batches(&self) -> Batches {
        self.batches.clone()
    }

    /// Never returns.
    pub(crate) async fn serve(self) {
        let batches = self.batches;
        let traces = warp::path!("v1" / "traces")
            .and(warp::post())
            .and(warp::body::content_length_limit(BODY_BYTES_MAX))
            .and(warp::body::bytes())
            .map(move |_| {
                batches.0.fetch_add(1, Ordering::Relaxed);
                // An answer without fields: everything was taken.
                warp::reply::with_header(Vec::new(), "content-type", "application/x-protobuf")
                    .into_response()
            });
        warp::serve(traces).incoming(self.listener).run().await;
    }
}
