//! Prior tokens of earlier outputs: equal requests have equal tokens, so that the AR engine need not run again.
//!
//! A name is the first 128 bits of a SHA-256 over everything that the tokens follow from: who wrote them (kind of
//! engine, revision of the model, which covers its sampling parameters, numbers it computes with), prompt, size and
//! seed, each with its length. Denoising parameters are no part of it: that is what makes variations cheap.
//!
//! A revision does not see the numbers of a weight: after new weights of the same shapes under the same configs, old
//! tokens are found until they run out (an hour, or when the bucket is purged).
//!
//! It is a cache: a broker that does not answer, or an entry that cannot be used, is a miss, and what is not stored is
//! written again by whoever needs it. No picture ever fails here.

use std::sync::Arc;

use futures::future::join_all;
use messaging::{Bus, Fence};
use protocol::{ImageSize, PriorId, StoredPrior};
use service::{
    exit::chain,
    metrics::{
        Counter, Metrics,
        catalog::{
            PRIOR_CACHE_HITS, PRIOR_CACHE_MISSES, PRIOR_CACHE_STORED, PRIOR_CACHE_STORED_BYTES,
        },
    },
};
use sha2::{Digest, Sha256};

use crate::engine::{Prior, PriorBatch, PriorRow};

/// What this version calls everything that goes into a name. Another way to write tokens, or to name them, is another
/// text here: old entries are never found again, and run out.
const NAMING: &str = "fresco prior tokens 1";

/// Tokens and the name under which they are stored, if they are.
#[derive(Debug, Clone)]
pub(crate) struct NamedPrior {
    pub(crate) prior: Prior,
    pub(crate) id: Option<PriorId>,
}

impl From<Prior> for NamedPrior {
    fn from(prior: Prior) -> Self {
        Self { prior, id: None }
    }
}

impl From<StoredPrior> for NamedPrior {
    fn from(StoredPrior { id, tokens, usage }: StoredPrior) -> Self {
        let mut prior = Prior { tokens, usage };
        prior.usage.cached = true;
        Self {
            prior,
            id: Some(id),
        }
    }
}

/// What the cache did, for `/metrics`.
#[derive(Debug, Clone)]
pub(crate) struct CacheCounters {
    hits: Counter,
    misses: Counter,
    stored: Counter,
    stored_bytes: Counter,
}

impl CacheCounters {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        Self {
            hits: metrics.counter(PRIOR_CACHE_HITS),
            misses: metrics.counter(PRIOR_CACHE_MISSES),
            stored: metrics.counter(PRIOR_CACHE_STORED),
            stored_bytes: metrics.counter(PRIOR_CACHE_STORED_BYTES),
        }
    }

    fn stored(&self, prior: &StoredPrior) {
        self.stored.inc();
        let bytes = size_of_val(prior.tokens.ids());
        self.stored_bytes.inc_by(bytes as u64);
    }
}

/// The cache as one batcher uses it. Clones share the counters.
#[derive(Debug, Clone)]
pub(crate) struct PriorCache {
    bus: Bus,
    writer: Arc<str>,
    counters: CacheCounters,
}

impl PriorCache {
    /// For tokens by `writer`: equal for engines that write alike.
    pub(crate) fn new(bus: &Bus, writer: String, counters: CacheCounters) -> Self {
        Self {
            bus: bus.clone(),
            writer: writer.into(),
            counters,
        }
    }

    /// The tokens that are stored already, row by row, for pictures of `size`. As long as one read of the broker, 2 s at
    /// most.
    pub(crate) async fn lookup(
        &self,
        rows: impl Iterator<Item = &PriorRow>,
        size: ImageSize,
    ) -> Vec<Option<NamedPrior>> {
        let found = join_all(rows.map(|row| self.find(row, size))).await;
        let hits = found.iter().flatten().count();
        self.counters.hits.inc_by(hits as u64);
        found
    }

    /// An engine took `rows` that were looked up in vain: at last, for one that is full is asked again, and so are they
    /// looked up.
    pub(crate) fn missed(&self, rows: usize) {
        self.counters.misses.inc_by(rows as u64);
    }

    /// The names of `batch`'s rows, in their order.
    pub(crate) fn names(&self, batch: &PriorBatch) -> Vec<PriorId> {
        let name = |row| name(&self.writer, row, batch.size);
        batch.rows.iter().map(name).collect()
    }

    async fn find(&self, row: &PriorRow, size: ImageSize) -> Option<NamedPrior> {
        let id = name(&self.writer, row, size);
        match self.bus.cached_prior(id).await {
            // Never seen; a grid of another size would take a denoiser down.
            Ok(Some(stored)) if !stored.tokens.fits(size) => {
                tracing::error!(%id, tokens = ?stored.tokens, "stored prior tokens have another size");
                None
            }
            Ok(stored) => stored.map(NamedPrior::from),
            Err(error) => {
                tracing::warn!(output = %row.output, error = %chain(&error), "prior tokens are not looked up");
                None
            }
        }
    }

    /// Stores `prior` as `id`, and names what is stored. Where another output of an equal request was first, its tokens
    /// have the name; those of an engine that does not follow its seed differ, and have none. As long as a write and a
    /// read of the broker, 4 s at most.
    pub(crate) async fn keep(&self, id: PriorId, prior: Prior) -> NamedPrior {
        let stored = StoredPrior {
            id,
            tokens: prior.tokens.clone(),
            usage: prior.usage,
        };
        let id = match self.bus.put_prior(&stored).await {
            Ok(Fence::First) => {
                self.counters.stored(&stored);
                Some(id)
            }
            Ok(Fence::Taken) => match self.bus.cached_prior(id).await {
                Ok(Some(first)) if first.tokens == stored.tokens => Some(id),
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(%id, error = %chain(&error), "stored prior tokens are not compared");
                    None
                }
            },
            Err(error) => {
                tracing::warn!(%id, error = %chain(&error), "prior tokens are not stored");
                None
            }
        };
        NamedPrior { prior, id }
    }
}

/// The name of the tokens that `writer` writes for `row`.
fn name(writer: &str, row: &PriorRow, size: ImageSize) -> PriorId {
    let mut hash = Sha256::new();
    let (size, seed) = (size.to_string(), row.seed.get().to_le_bytes());
    let pieces = [
        NAMING.as_bytes(),
        writer.as_bytes(),
        row.prompt.as_bytes(),
        size.as_bytes(),
        &seed,
    ];
    for piece in pieces {
        hash.update((piece.len() as u64).to_le_bytes());
        hash.update(piece);
    }
    let hash = hash.finalize();
    let start = hash.first_chunk().expect("a SHA-256 has 32 bytes");
    PriorId::from_u128(u128::from_be_bytes(*start))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use messaging::BusConfig;
    use protocol::{JobId, OutputIndex, PriorTokens, PriorUsage, Role, Seed};

    use super::*;

    fn row(prompt: &str, seed: u64) -> PriorRow {
        PriorRow {
            output: JobId::from_u128(seed.into()).output(OutputIndex::FIRST),
            prompt: prompt.into(),
            seed: Seed::new(seed).expect("small"),
        }
    }

    fn of(writer: &str, prompt: &str, seed: u64, width: u32) -> PriorId {
        let row = row(prompt, seed);
        let size = ImageSize::new(width, 32).expect("multiples of 32");
        name(writer, &row, size)
    }

    #[test]
    fn everything_that_tokens_follow_from_is_in_their_name() {
        let names = [
            of("native a", "p", 7, 32),
            of("native b", "p", 7, 32),
            of("native a", "q", 7, 32),
            of("native a", "p", 8, 32),
            of("native a", "p", 7, 64),
            // The same characters, cut elsewhere.
            of("native ap", "", 7, 32),
            of("native", " ap", 7, 32),
        ];
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn a_name_stays_what_it_is() {
        // Another name is a cache that is cold after an upgrade; then `NAMING` changes too.
        let name = of("native 0123456789ab f32", "a red fox", 7, 32).to_string();
        assert_eq!(name, "9ed84f1a329cedf9278f738f6f04a882");
    }

    #[tokio::test(start_paused = true)]
    async fn a_broker_that_does_not_answer_is_a_miss_and_costs_no_row() {
        // Nobody listens there, and the client tries for ever.
        let nowhere = vec!["nats://127.0.0.1:1".to_owned()];
        let prefix = "t".parse().expect("a prefix");
        let bus = Bus::connect(&BusConfig::new(nowhere, prefix, Role::ArBatcher)).await;
        let bus = bus.expect("the address is one");
        let counters = CacheCounters::register(&Metrics::new(Role::ArBatcher));
        let cache = PriorCache::new(&bus, "w".to_owned(), counters);
        let batch = PriorBatch {
            size: ImageSize::new(64, 32).expect("multiples of 32"),
            rows: vec![row("p", 7), row("p", 8)],
        };
        let found = cache.lookup(batch.rows.iter(), batch.size).await;
        assert!(matches!(found.as_slice(), [None, None]));
        let tokens = PriorTokens::new(1, 2, vec![1, 2]).expect("fills the grid");
        let usage = PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 3,
            cached: false,
        };
        let kept = cache.keep(cache.names(&batch)[0], Prior { tokens, usage });
        let kept = kept.await;
        assert_eq!((kept.id, kept.prior.usage), (None, usage));
        cache.missed(found.len());
        let counted = [&cache.counters.misses, &cache.counters.stored].map(Counter::get);
        assert_eq!(counted, [2, 0]);
    }
}
