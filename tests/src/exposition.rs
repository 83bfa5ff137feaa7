//! A server whose every answer is what some metrics are by then, for a Prometheus to scrape.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::TcpListener;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// It ends when it is dropped.
pub struct Exposition {
    address: SocketAddr,
    _stop: DropGuard,
}

impl Exposition {
    /// Listens on a free port, and answers with what `text` says, in Prometheus' text format.
    pub async fn start(text: impl Fn() -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let accept = accept(listener, Arc::new(text), tracker.clone(), stop.clone());
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self {
            address,
            _stop: stop.drop_guard(),
        }
    }

    /// Whose `/metrics` to scrape.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(
    listener: TcpListener,
    text: Arc<impl Fn() -> String + Send + Sync + 'static>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let text = Arc::clone(&text);
        let answer = service_fn(move |_: Request<Incoming>| {
            let text = Bytes::from(text());
            async move {
                let mut response = Response::new(Full::new(text));
                let plain = HeaderValue::from_static("text/plain; version=0.0.4");
                response.headers_mut().insert(CONTENT_TYPE, plain);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = async move {
            // An error is a client that is gone.
            auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), answer)
                .await
                .ok();
        };
        tracker.spawn(stop.clone().run_until_cancelled_owned(connection));
    }
}
