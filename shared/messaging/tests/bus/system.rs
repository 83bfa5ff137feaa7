use messaging::{Access, Bus, BusConfig, SystemEvent, SystemWatch};
use protocol::{Prefix, Role};

use crate::{
    common::Broker,
    site::{prefix, within},
};

async fn watching(urls: &[String]) -> SystemWatch {
    let mut system = SystemWatch::connect(urls, &Access::default(), prefix())
        .await
        .expect("the address is one");
    let first = within("the system account answers", system.next()).await;
    assert_eq!(first, Some(SystemEvent::Watching));
    system
}

async fn connect(broker: &Broker, prefix: Prefix) -> (Bus, BusConfig) {
    let config = BusConfig::new(vec![broker.url()], prefix, Role::Denoiser);
    let bus = Bus::connect(&config).await.expect("the address is one");
    within("connected", bus.connected()).await;
    (bus, config)
}

#[tokio::test]
async fn the_system_account_tells_who_comes_and_goes() {
    let broker = Broker::start_with_system_account();
    let mut system = watching(&[broker.system_url()]).await;
    let (other, _) = connect(&broker, "another".parse().unwrap()).await;
    other.close().await;
    let (bus, config) = connect(&broker, prefix()).await;
    let came = within("it comes", system.next()).await;
    let Some(SystemEvent::Connected(worker, connection)) = came else {
        panic!("{came:?}")
    };
    assert_eq!(
        worker, config.worker,
        "of another deployment nothing is told"
    );
    bus.close().await;
    let went = within("it goes", system.next()).await;
    assert_eq!(went, Some(SystemEvent::Disconnected(worker, connection)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_broker_is_watched_again() {
    let mut broker = Broker::start_with_system_account();
    let mut system = watching(&[broker.system_url()]).await;
    broker.kill();
    assert_eq!(
        within("blind", system.next()).await,
        Some(SystemEvent::Blind)
    );
    broker.start_again();
    assert_eq!(
        within("it is back", system.next()).await,
        Some(SystemEvent::Watching)
    );
    let (_bus, config) = connect(&broker, prefix()).await;
    let came = within("it comes", system.next()).await;
    assert!(
        matches!(&came, Some(SystemEvent::Connected(worker, _)) if *worker == config.worker),
        "{came:?}"
    );
}
