//! The tokio-console: what every task of the process is at and how long its polls take, for whoever reaches the address.
//! It says where in the code a task began, and nothing of a job.

use std::{io, net::SocketAddr, thread, time::Duration};

use console_subscriber::{ConsoleLayer, Server, ServerParts};
use tokio::{net::TcpListener, runtime};
use tonic::transport::server::TcpIncoming;
use tracing::{Metadata, Subscriber, subscriber::NoSubscriber};
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use crate::exit::chain;

/// How long a task that has ended is still shown, and kept.
const ENDED_SHOWN: Duration = Duration::from_secs(60);

/// What may wait to be told to the console, as events of tasks; more are dropped and counted there.
const EVENTS_MAX: usize = 64 * 1024;

/// Why there is no console.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConsoleError {
    /// Tokio tells of its tasks only where it was built to; `.cargo/config.toml` asks for it.
    #[error(
        "this program was built without the cfg `tokio_unstable`: a RUSTFLAGS of the build's own must hold it, too"
    )]
    Build,
    /// The address, or the thread.
    #[error("cannot listen")]
    Listen(#[from] io::Error),
}

/// A console that is served, and where: port 0 has become one.
pub(super) struct Console {
    layer: ConsoleLayer,
    pub(super) address: SocketAddr,
}

impl Console {
    /// Serves on a thread and a runtime of its own: what hangs in the process's runtime is what it is there to show.
    pub(super) fn start(address: SocketAddr) -> Result<Self, ConsoleError> {
        if !cfg!(tokio_unstable) {
            return Err(ConsoleError::Build);
        }
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (layer, server) = ConsoleLayer::builder()
            .retention(ENDED_SHOWN)
            .event_buffer_capacity(EVENTS_MAX)
            .build();
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("tokio-console".to_owned())
            .spawn(move || {
                // Not of itself: each of its events would make the next.
                let served = tracing::subscriber::with_default(NoSubscriber::default(), || {
                    runtime.block_on(serve(server, listener))
                });
                if let Err(error) = served {
                    tracing::error!(error = chain(&*error), "the tokio-console has ended");
                }
            })?;
        Ok(Self { layer, address })
    }

    /// What is to hear of the tasks.
    pub(super) fn into_layer<S>(self) -> impl Layer<S>
    where
        S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    {
        self.layer.with_filter(filter_fn(is_of_tasks))
    }
}

async fn serve(
    server: Server,
    listener: std::net::TcpListener,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let listener = TcpListener::from_std(listener)?;
    let ServerParts {
        instrument_server,
        aggregator,
        ..
    } = server.into_parts();
    let serving = tonic::transport::Server::builder()
        .add_service(instrument_server)
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::select! {
        served = serving => Ok(served?),
        () = aggregator.run() => Ok(()),
    }
}

/// Tokio's own spans and events; ours are the traces' and the log's.
fn is_of_tasks(callsite: &Metadata<'_>) -> bool {
    let of_tokio = |target: &str| target.starts_with("tokio") || target.starts_with("runtime");
    of_tokio(callsite.target()) || callsite.is_span() && callsite.name().starts_with("runtime.")
}
