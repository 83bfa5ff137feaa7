//! An external SRT server over HTTP: SGLang's runtime serving the checkpoint's language model. We tokenize, it writes.
//!
//! The contract was read in SGLang 0.5.23. A call is one `POST /generate` in its batched form; SRT batches whatever
//! calls it has by itself, so rows of different sizes need no company of ours. It tells no progress and knows no job.

mod args;
mod call;
mod client;
mod probe;
mod reply;
mod request;

use std::{path::Path, sync::Arc};

use futures::future::BoxFuture;
use model::{Checkpoint, ModelError, PriorCodec};
use protocol::{ImageSize, JobError};
use service::exit::Failure;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::args::{NoSrtUrl, SrtArgs, SrtUrl};
pub(crate) use self::probe::watch_servers;
use self::{
    call::Caller,
    client::SrtClient,
    request::{SrtRow, SrtSampling, new_tokens},
};
use crate::{
    engine::{BatchProgress, EngineError, PriorBatch, PriorEngine, PriorRow, RowOutcome},
    native::{failed, model_size},
};

/// One server.
#[derive(Clone)]
pub struct SrtEngine {
    client: SrtClient,
    text: Arc<Text>,
}

/// What the servers' engines share: the checkpoint without its weights.
struct Text {
    codec: PriorCodec,
    sampling: SrtSampling,
    revision: String,
}

impl SrtEngine {
    /// An engine for each server, in the order of `args`. Reads the checkpoint and calls nobody: a server that is down
    /// comes up later.
    ///
    /// # Errors
    ///
    /// A checkpoint that cannot be used.
    pub fn load(args: &SrtArgs, model: &Path) -> Result<Vec<Self>, Failure> {
        let text = read(model).map_err(|error| Failure::unusable(&error))?;
        let (codec, revision) = text;
        let sampling = SrtSampling::try_from(codec.sampling());
        let sampling = sampling.map_err(|error| Failure::unusable(&error))?;
        let text = Arc::new(Text {
            codec,
            sampling,
            revision,
        });
        let engine = |url: &SrtUrl| {
            let client = SrtClient::new(url.clone(), args.srt_timeout);
            Ok(Self {
                client: client.map_err(|error| Failure::failed(&error))?,
                text: Arc::clone(&text),
            })
        };
        args.srt_urls.iter().map(engine).collect()
    }
}

fn read(model: &Path) -> Result<(PriorCodec, String), ModelError> {
    let checkpoint = Checkpoint::open(model)?;
    Ok((PriorCodec::open(&checkpoint)?, checkpoint.revision()?))
}

impl PriorEngine for SrtEngine {
    fn codebook_size(&self) -> u32 {
        self.text.codec.codebook_size()
    }

    fn revision(&self) -> String {
        self.text.revision.clone()
    }

    fn run(
        &self,
        batch: PriorBatch,
        progress: watch::Sender<BatchProgress>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Vec<RowOutcome>, EngineError>> {
        let Self { client, text } = self.clone();
        Box::pin(async move {
            let reader = Arc::clone(&text);
            // A long prompt takes milliseconds.
            let read = tokio::task::spawn_blocking(move || {
                let read = |row| read_row(&reader.codec, batch.size, row);
                batch.rows.iter().map(read).collect::<Vec<_>>()
            });
            let read = read
                .await
                .map_err(|error| EngineError::Gone(error.into()))?;
            let rows: Vec<SrtRow> = read.iter().flatten().cloned().collect();
            let tokens_max = rows.first().map_or(0, |row| new_tokens(row.grids));
            let caller = Caller {
                client: &client,
                sampling: text.sampling,
                codebook_size: text.codec.codebook_size(),
                progress: &progress,
                tokens_max: u32::try_from(tokens_max).unwrap_or(u32::MAX),
                stop: &stop,
            };
            let ran = match rows.as_slice() {
                [] => Vec::new(),
                rows => caller.run(rows).await?,
            };
            let mut ran = ran.into_iter();
            let outcome = |row: Result<SrtRow, JobError>| {
                row.and_then(|_| ran.next().expect("an outcome for each row that ran"))
            };
            Ok(read.into_iter().map(outcome).collect())
        })
    }
}

/// What the server is to be asked for; a prompt that no model takes is its own row's error.
fn read_row(codec: &PriorCodec, size: ImageSize, row: &PriorRow) -> Result<SrtRow, JobError> {
    let prompt = codec.prompt(&row.prompt, model_size(size));
    let prompt = prompt.map_err(|error| failed(&error))?;
    Ok(SrtRow {
        output: row.output,
        ids: prompt.ids,
        grids: prompt.grids,
        seed: row.seed,
    })
}
