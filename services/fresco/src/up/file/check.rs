//! What a fleet file may not say: checked as a whole before the first process starts.

use std::collections::{BTreeMap, BTreeSet};

use protocol::limits::{AR_DELAY_MS_MAX, AR_SLOTS_MAX};
use service::address::PublicUrl;

use super::{Broker, DENOISERS_MAX, EngineName, FleetFile, probes, server};

/// What cannot work, by the name it has in the file.
pub(super) fn check(file: &FleetFile) -> Result<(), String> {
    let replays = file.engine == EngineName::Replay;
    if replays != file.times.is_some() {
        return Err("`times` goes with engine = \"replay\", and only with it".to_owned());
    }
    let ar = file.ar.as_ref();
    if replays && file.model.is_some() || file.loads_a_model() && file.model.is_none() {
        return Err("`model` goes with every engine but \"replay\"".to_owned());
    }
    if ar.is_some_and(|ar| (file.engine == EngineName::Srt) == ar.srt_urls.is_empty()) {
        return Err("`ar.srt_urls` goes with engine = \"srt\", and only with it".to_owned());
    }
    let scale = file.time_scale.unwrap_or(1.0);
    if !(scale > 0.0 && scale.is_finite()) {
        return Err("`time_scale` is not a number above 0".to_owned());
    }
    if !replays && (file.time_scale.is_some() || file.faults.is_some()) {
        return Err("`time_scale` and `faults` go with engine = \"replay\"".to_owned());
    }
    check_tables(file)?;
    check_devices(file)?;
    if let Some(ar) = &file.ar {
        server::check(ar, &ports(file))?;
    }
    check_addresses(file)?;
    probes::check(file)?;
    if !matches!(file.broker.replicas, None | Some(1 | 3 | 5)) {
        return Err("`broker.replicas` is not 1, 3 or 5".to_owned());
    }
    if file.broker.urls.is_empty() && file.broker.replicas.is_some_and(|copies| copies > 1) {
        return Err(
            "`broker.replicas` needs as many servers: without `broker.urls` there is one"
                .to_owned(),
        );
    }
    check_numbers(file)
}

/// That the gateway and the probes listen on.
fn ports(file: &FleetFile) -> BTreeSet<u16> {
    let gateway = file.gateway.as_ref();
    let gateway = gateway.map(|gateway| [Some(gateway.listen), gateway.health_listen]);
    let gateway = gateway.into_iter().flatten().flatten();
    gateway
        .map(|address| address.port())
        .chain(probes::ports(file).filter_map(|port| u16::try_from(port).ok()))
        .collect()
}

/// Who is not in the file is on another machine, which a broker has to join with this one.
fn check_tables(file: &FleetFile) -> Result<(), String> {
    let tables = [
        ("gateway", file.gateway.is_some()),
        ("ar", file.ar.is_some()),
        ("denoisers", file.denoisers.is_some()),
    ];
    let missing = tables.iter().find(|(_, there)| !there);
    if let Some((name, _)) = missing
        && file.broker.urls.is_empty()
    {
        return Err(format!(
            "`{name}` is missing: without `broker.urls` no other machine has one"
        ));
    }
    if tables.iter().any(|(_, there)| *there) {
        Ok(())
    } else {
        Err("`gateway`, `ar` and `denoisers` are all missing".to_owned())
    }
}

/// One denoiser a device, and a model where it is meant to be.
fn check_devices(file: &FleetFile) -> Result<(), String> {
    if file.loads_a_model() && file.pin.is_none() {
        return Err(
            "`pin` is missing: it says how a worker is kept to its device, such as variable = \"CUDA_VISIBLE_DEVICES\", \
             device = \"cuda:0\"; on a machine with a CPU alone, device = \"cpu\" with the same variable"
                .to_owned(),
        );
    }
    let ar = file.ar.as_ref().map(|ar| ar.devices.len());
    if file.engine == EngineName::Native && ar.is_some_and(|count| count != 1) {
        return Err("`ar.devices` is not one device: the native engine uses one".to_owned());
    }
    let denoisers = file.denoisers().len();
    if file.denoisers.is_some() && !(1..=DENOISERS_MAX).contains(&denoisers) {
        return Err(format!(
            "`denoisers.devices` has {denoisers}, not 1 to {DENOISERS_MAX}"
        ));
    }
    let mut users = BTreeMap::new();
    let ar = file.ar_devices().iter().map(|device| (device, "ar"));
    let denoisers = file.denoisers().iter();
    let denoisers = denoisers.map(|device| (device, "denoisers"));
    for (device, user) in ar.chain(denoisers) {
        if let Some(other) = users.insert(device, user) {
            return Err(format!(
                "device {device} is in `{other}.devices` and again in `{user}.devices`"
            ));
        }
    }
    Ok(())
}

/// What processes would refuse, or tell others in vain.
fn check_addresses(file: &FleetFile) -> Result<(), String> {
    let Broker {
        urls,
        credentials,
        ca,
        ..
    } = &file.broker;
    if urls.is_empty() && (credentials.is_some() || ca.is_some()) {
        return Err("`broker.credentials` and `broker.ca` go with `broker.urls`".to_owned());
    }
    if urls.iter().any(String::is_empty) {
        return Err("`broker.urls` has an empty one".to_owned());
    }
    // They would be in command lines and units, which everybody on the machine can read.
    if urls.iter().any(|url| url.contains('@')) {
        return Err("`broker.urls` has credentials: `broker.credentials` takes files".to_owned());
    }
    let srt = file.ar.iter().flat_map(|ar| &ar.srt_urls);
    if srt.into_iter().any(|url| url.contains('@')) {
        return Err("`ar.srt_urls` has credentials, which nothing here takes".to_owned());
    }
    let Some(gateway) = &file.gateway else {
        return Ok(());
    };
    let health = gateway.health_listen;
    if let Some(address) = health.filter(|address| address.ip().to_canonical().is_unspecified()) {
        return Err(format!(
            "`gateway.health_listen` {address} is a wildcard, which others would be told: give the address they call"
        ));
    }
    if let Some(url) = &gateway.public_url {
        let parsed = url.parse::<PublicUrl>();
        parsed.map_err(|error| format!("`gateway.public_url`: {error}"))?;
    }
    Ok(())
}

/// What flags refuse before anything starts, and what no clock can add up.
fn check_numbers(file: &FleetFile) -> Result<(), String> {
    const DAY_S: u64 = 86_400;
    let (broker, start) = (&file.broker, &file.start);
    let ar = file.ar.as_ref();
    let slots_max = ar.and_then(|ar| ar.slots_max).map(u64::from);
    let delay_ms = ar.and_then(|ar| ar.delay_ms);
    let loading_max = u64::try_from(start.loading_max).ok();
    for (name, value, range) in [
        ("broker.ack_wait_s", broker.ack_wait_s, 1..=3600),
        ("broker.result_ttl_s", broker.result_ttl_s, 1..=DAY_S),
        ("ar.slots_max", slots_max, 1..=AR_SLOTS_MAX.into()),
        ("ar.delay_ms", delay_ms, 0..=AR_DELAY_MS_MAX),
        (
            "start.loading_max",
            loading_max,
            1..=DENOISERS_MAX as u64 + 1,
        ),
        ("start.loading_s", Some(start.loading_s), 1..=DAY_S),
        ("stop.drain_s", Some(file.stop.drain_s), 0..=DAY_S),
    ] {
        if value.is_some_and(|value| !range.contains(&value)) {
            let (low, high) = (range.start(), range.end());
            return Err(format!("`{name}` is not {low} to {high}"));
        }
    }
    Ok(())
}
