//! What permissions do not hold against, so that the documents say no more and no less than is so.

use messaging::ProvisionError;
use protocol::{Role, topology::Topology};

use super::{
    Site, prefix,
    probe::{Probe, Verb},
};
use crate::site::until;

/// No role may delete the stream of results (`NOBODY`), and a denoiser's key does: the server publishes what it is asked for with
/// its own rights, to whatever subject the asker names for the reply. `roles.conf`, docs/deploy.md, README.md and ARCHITECTURE.md
/// say so. Where a server checks that subject this test fails: then those sentences go, and here stands that it is refused.
#[tokio::test]
async fn a_hostile_holder_of_a_key_reaches_every_stream_by_the_replies_of_the_server() {
    const DELETES: &str = "$JS.API.STREAM.DELETE.fresco-RES";
    const KEY: &str = "$KV.fresco-outputs.forged";
    let site = Site::start();
    let operator = site.connect(Role::Operator, "operator").await;
    let topology = Topology::new(&prefix());
    operator.provision(&topology).await.unwrap();
    operator.verify(&topology).await.unwrap();
    let mut denoiser = Probe::connect(&site, "denoiser").await;
    denoiser.violates(Verb::Publish, DELETES).await;
    operator.verify(&topology).await.unwrap();

    // A value without a byte is a request to delete a stream.
    denoiser.does(Verb::Publish, KEY).await;
    let ask = format!("$JS.API.DIRECT.GET.KV_fresco-outputs.{KEY}");
    until("the results are gone", || async {
        denoiser.asks_for_another(&ask, DELETES).await;
        let found = operator.verify(&topology).await;
        matches!(found, Err(ProvisionError::Missing { name }) if name == "stream fresco-RES")
    })
    .await;
    // None of it was refused: the next that it hears of is this.
    denoiser.violates(Verb::Publish, DELETES).await;
}
