//! A wire to a broker that can be cut.

use std::sync::Arc;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::TaskTracker;

/// Connections through it go to the broker until they are cut.
pub(crate) struct Wire {
    url: String,
    /// How often it was cut; `None` once it is cut for good.
    cuts: Arc<watch::Sender<Option<u64>>>,
}

impl Wire {
    pub(crate) async fn to(url: &str) -> Self {
        let broker = url.replace("nats://", "");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let cuts = Arc::new(watch::Sender::new(Some(0)));
        let (tracker, seen) = (TaskTracker::new(), cuts.clone());
        tracker.clone().spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if seen.borrow().is_none() {
                    continue;
                }
                let mut cut = seen.subscribe();
                let broker = broker.clone();
                tracker.spawn(async move {
                    let (mut client, Ok(mut server)) = (client, TcpStream::connect(broker).await)
                    else {
                        return;
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { url, cuts }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Ends the connections; new ones work.
    pub(crate) fn cut(&self) {
        self.cuts
            .send_modify(|cuts| *cuts = cuts.map(|cuts| cuts + 1));
    }

    /// Ends the connections and takes no more.
    pub(crate) fn cut_for_good(&self) {
        self.cuts.send_replace(None);
    }
}
