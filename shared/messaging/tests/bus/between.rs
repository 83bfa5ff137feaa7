//! A way to a broker on which a test decides what becomes of some requests.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
};
use tokio_util::task::TaskTracker;

/// A request on its way, which waits for its fate.
pub(crate) struct Asked {
    /// Behind `$JS.API.`.
    pub(crate) subject: &'static str,
    pub(crate) fate: oneshot::Sender<Fate>,
}

/// What becomes of it, when it has come to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// Nothing comes back, and the connection ends.
    AnswerLost,
}

/// Starts one to `broker`, in front of requests on these subjects; says where it begins.
pub(crate) async fn start(
    broker: &str,
    subjects: &'static [&'static str],
    asked: mpsc::Sender<Asked>,
    tracker: &TaskTracker,
) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let broker = broker.trim_start_matches("nats://").to_owned();
    let connections = tracker.clone();
    tracker.spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (broker, asked) = (broker.clone(), asked.clone());
            connections.spawn(async move { pass(client, &broker, subjects, &asked).await.ok() });
        }
    });
    format!("nats://{address}")
}

/// Until one of them is gone, or an answer is lost.
async fn pass(
    mut client: TcpStream,
    broker: &str,
    subjects: &[&'static str],
    asked: &mpsc::Sender<Asked>,
) -> std::io::Result<()> {
    let mut broker = TcpStream::connect(broker).await?;
    let mut fate = Fate::Answered;
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let said = &up[..read?];
                if said.is_empty() {
                    return Ok(());
                }
                if let Some(subject) = subjects.iter().find(|subject| has(said, &format!(".API.{subject} "))) {
                    let (tell, told) = oneshot::channel();
                    asked.send(Asked { subject, fate: tell }).await.ok();
                    fate = told.await.unwrap_or(Fate::Answered);
                }
                broker.write_all(said).await?;
            }
            read = broker.read(&mut down) => {
                let said = &down[..read?];
                if said.is_empty() || (fate == Fate::AnswerLost && has(said, "MSG ")) {
                    return Ok(());
                }
                client.write_all(said).await?;
            }
        }
    }
}

fn has(said: &[u8], text: &str) -> bool {
    said.windows(text.len())
        .any(|window| window == text.as_bytes())
}
