use messaging::{BusError, Fence};
use protocol::{PriorId, PriorTokens, PriorUsage, StoredPrior, topology::Topology};

use crate::site::{Site, prefix};

/// The tokens of a picture of 1024 x 1024: 2 KB.
pub(crate) fn prior(number: u16) -> StoredPrior {
    StoredPrior {
        id: PriorId::from_u128(number.into()),
        tokens: PriorTokens::new(32, 32, vec![number; 1024]).expect("fills the grid"),
        usage: PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 1281,
            cached: false,
        },
    }
}

#[tokio::test]
async fn stored_tokens_are_found_by_their_name_and_never_replaced() {
    let site = Site::start().await;
    let first = prior(7);
    assert_eq!(site.bus.prior(first.id).await.unwrap(), None);
    assert_eq!(site.bus.cached_prior(first.id).await.unwrap(), None);
    assert_eq!(site.bus.put_prior(&first).await.unwrap(), Fence::First);
    // Another grid under the same name, from an engine that does not follow its seed.
    let other = StoredPrior {
        id: first.id,
        ..prior(8)
    };
    assert_eq!(site.bus.put_prior(&other).await.unwrap(), Fence::Taken);
    assert_eq!(
        site.bus.cached_prior(first.id).await.unwrap().as_ref(),
        Some(&first)
    );
    assert_eq!(site.bus.prior(first.id).await.unwrap(), Some(first));
}

#[tokio::test]
async fn a_full_bucket_drops_its_oldest_and_never_exceeds_its_limit() {
    const BYTES_MAX: i64 = 64 * 1024;
    let mut topology = Topology::new(&prefix());
    topology.priors.bytes_max = BYTES_MAX;
    let site = Site::with(topology).await;
    let stream = format!("KV_{}", site.topology.priors.name);
    let stream = site.raw().await.get_stream(stream).await.unwrap();
    for number in 0..100 {
        let stored = site.bus.put_prior(&prior(number)).await;
        assert_eq!(stored.unwrap(), Fence::First, "{number}");
        let bytes = stream.get_info().await.unwrap().state.bytes;
        assert!(bytes <= BYTES_MAX.unsigned_abs(), "{bytes} at {number}");
    }
    let kept = stream.get_info().await.unwrap().state;
    assert!((20..100).contains(&kept.messages), "{kept:?}");
    let oldest_kept = 100 - u16::try_from(kept.messages).unwrap();
    for (number, is_kept) in [
        (0, false),
        (oldest_kept - 1, false),
        (oldest_kept, true),
        (99, true),
    ] {
        let found = site.bus.prior(prior(number).id).await.unwrap();
        assert_eq!(found, is_kept.then(|| prior(number)), "{number}");
    }
    // A name that was dropped is free again.
    assert_eq!(site.bus.put_prior(&prior(0)).await.unwrap(), Fence::First);
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_told_from_a_miss() {
    let site = Site::start().await;
    site.broker.freeze();
    let found = site.bus.cached_prior(prior(7).id).await;
    assert!(matches!(found, Err(BusError::Unavailable { .. })));
    assert!(site.bus.put_prior(&prior(7)).await.is_err());
    site.broker.thaw();
}
