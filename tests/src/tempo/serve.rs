//! The emulation for a Prometheus to scrape: each scrape takes in what the collector has got since the last one.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, header::CONTENT_TYPE, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::TcpListener;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{Config, Processor};
use crate::otlp::Collector;

/// It ends when it is dropped.
pub struct Generator {
    address: SocketAddr,
    _stop: DropGuard,
}

struct Live {
    collector: Arc<Collector>,
    wait: Duration,
    state: Mutex<(Processor, usize)>,
}

impl Generator {
    /// Listens on a free port. Halves of edges wait for `wait`: what takes minutes in a deployment takes seconds in a
    /// test.
    pub async fn start(collector: Arc<Collector>, wait: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let live = Arc::new(Live {
            collector,
            wait,
            state: Mutex::new((Processor::new(Config::shipped()), 0)),
        });
        let accept = accept(listener, live, tracker.clone(), stop.clone());
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

impl Live {
    fn scraped(&self) -> String {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (processor, seen) = &mut *state;
        let (spans, now) = (self.collector.spans(), Instant::now());
        for span in &spans[*seen..] {
            processor.push(span, now);
        }
        *seen = spans.len();
        processor.expire(self.wait, now);
        processor.text()
    }
}

async fn accept(
    listener: TcpListener,
    live: Arc<Live>,
    tracker: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let live = Arc::clone(&live);
        let answer = service_fn(move |_: Request<Incoming>| {
            let text = Bytes::from(live.scraped());
            async move {
                let mut response = Response::new(Full::new(text));
                let plain = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
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
