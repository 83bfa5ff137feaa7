use std::time::Duration;

use messaging::ProvisionError;
use protocol::{
    Role,
    topology::{Topology, TopologyOptions},
};

use crate::{
    common::Broker,
    site::{Site, connect, output, picture, prefix},
};

#[tokio::test]
async fn provisioning_twice_changes_nothing() {
    let site = Site::start().await;
    let before = site
        .raw()
        .await
        .get_stream(&site.topology.ar.name)
        .await
        .unwrap()
        .cached_info()
        .clone();
    site.bus.provision(&site.topology).await.unwrap();
    site.bus.verify(&site.topology).await.unwrap();
    let after = site
        .raw()
        .await
        .get_stream(&site.topology.ar.name)
        .await
        .unwrap()
        .cached_info()
        .clone();
    assert_eq!(
        (before.config, before.created),
        (after.config, after.created)
    );
}

#[tokio::test]
async fn an_empty_broker_is_reported_by_the_first_missing_name() {
    let broker = Broker::start();
    let bus = connect(&broker, Role::Gateway).await;
    let error = bus.verify(&Topology::new(&prefix())).await.unwrap_err();
    assert!(matches!(error, ProvisionError::Missing { name } if name == "stream t-AR"));
}

#[tokio::test]
async fn a_broker_that_would_refuse_pictures_is_reported() {
    let broker = Broker::start_with_small_payloads();
    let bus = connect(&broker, Role::Operator).await;
    let error = bus.provision(&Topology::new(&prefix())).await.unwrap_err();
    let ProvisionError::Differs { differences, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(differences[0].field, "max_payload");
    assert_eq!(differences[0].found, (1024 * 1024).to_string());
}

#[tokio::test]
async fn a_stream_with_other_settings_is_reported_and_left_alone() {
    let mut other = Topology::new(&prefix());
    other.ar.messages_max = 7;
    other.ar.age_max = Duration::from_secs(3_600);
    let site = Site::with(other.clone()).await;
    for result in [
        site.bus.provision(&Topology::new(&prefix())).await,
        site.bus.verify(&Topology::new(&prefix())).await,
    ] {
        let Err(ProvisionError::Differs { name, differences }) = result else {
            panic!("{result:?}")
        };
        assert_eq!(name, "stream t-AR");
        let fields: Vec<&str> = differences
            .iter()
            .map(|difference| difference.field.as_str())
            .collect();
        assert_eq!(fields, ["max_age", "max_msgs"]);
        assert_eq!(
            (
                differences[1].wanted.as_str(),
                differences[1].found.as_str()
            ),
            ("20000", "7")
        );
    }
    site.bus.verify(&other).await.unwrap();
}

#[tokio::test]
async fn a_consumer_with_other_settings_is_reported() {
    let mut other = Topology::new(&prefix());
    other.denoise_consumer.ack_pending_max = 9;
    let site = Site::with(other).await;
    let error = site
        .bus
        .verify(&Topology::new(&prefix()))
        .await
        .unwrap_err();
    let ProvisionError::Differs { name, differences } = error else {
        panic!("{error:?}")
    };
    assert_eq!(name, "consumer t-DN/all");
    assert_eq!(differences[0].field, "max_ack_pending");
}

#[tokio::test]
async fn services_accept_the_ack_deadline_in_force() {
    let site = Site::start().await;
    site.bus.verify(&Topology::new(&prefix())).await.unwrap();
    let error = site
        .bus
        .provision(&Topology::new(&prefix()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, ProvisionError::Differs { differences, .. } if differences[0].field == "ack_wait")
    );
}

#[tokio::test]
async fn what_is_missing_comes_back_although_something_else_differs() {
    let mut other = Topology::new(&prefix());
    other.ar.messages_max = 7;
    let site = Site::with(other).await;
    let wanted = Topology::new(&prefix());
    let stream = site.raw().await.get_stream(&wanted.denoise.name).await;
    let consumer = &wanted.denoise_consumer.name;
    stream.unwrap().delete_consumer(consumer).await.unwrap();
    let kept = site.bus.keep(&wanted).await.unwrap();
    assert_eq!(kept.created, ["consumer t-DN/all"]);
    let [ProvisionError::Differs { name, .. }] = kept.differing.as_slice() else {
        panic!("{kept:?}")
    };
    assert_eq!(name, "stream t-AR");
    assert_eq!(site.bus.queues().await.unwrap().denoise.held, 0);
    assert!(site.bus.keep(&wanted).await.unwrap().created.is_empty());
}

#[tokio::test]
async fn services_accept_the_room_for_results_in_force_and_can_tell_what_is_left() {
    // Keys and prior tokens are kept as long as results say.
    let options = TopologyOptions {
        result_ttl: Duration::from_secs(90),
        ..TopologyOptions::default()
    };
    let mut other = Topology::with(&prefix(), options);
    other.results.bytes_max = 20_000_000;
    assert_eq!(other.priors.age_max, options.result_ttl);
    let site = Site::with(other).await;
    site.bus.verify(&Topology::new(&prefix())).await.unwrap();
    let empty = site.bus.results_store().await.unwrap().unwrap();
    assert_eq!(empty.age_max, Duration::from_secs(90));
    assert_eq!((empty.bytes, empty.bytes_max), (0, Some(20_000_000)));
    let painted = picture(output(1), vec![1; 100_000]);
    site.bus.put_result(&painted).await.unwrap();
    let store = site.bus.results_store().await.unwrap().unwrap();
    assert!((100_000..110_000).contains(&store.bytes), "{store:?}");
}
