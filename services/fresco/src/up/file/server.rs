//! `[ar.server]`: the SRT servers that a fleet file has started, one for each of `ar.srt_urls`, with an equal share of
//! `ar.devices` each, in order.

use std::{collections::BTreeSet, net::IpAddr, path::Path};

use reqwest::Url;
use serde::Deserialize;

use super::{Ar, FleetFile, pinned};
use crate::up::site::Server;

/// Stands in a command for the port of the server's URL, so that both are said once.
const PORT: &str = "{port}";

/// Stands in a command for the folder that is `model`.
const MODEL: &str = "{model}";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArServer {
    /// Program and arguments. Whatever SRT takes, which changes faster than we do.
    command: Vec<String>,
}

/// What cannot work, by the name it has in the file; `others` are the ports of the gateway and of the probes.
pub(super) fn check(ar: &Ar, others: &BTreeSet<u16>) -> Result<(), String> {
    let Some(server) = &ar.server else {
        return Ok(());
    };
    if ar.srt_urls.is_empty() {
        return Err("`ar.server` goes with engine = \"srt\"".to_owned());
    }
    if server.command.first().is_none_or(String::is_empty) {
        return Err("`ar.server.command` has no program".to_owned());
    }
    if !server.command.iter().any(|word| word.contains(PORT)) {
        return Err(format!(
            "`ar.server.command` has no {PORT}: that is where its URL says it listens"
        ));
    }
    let mut ports = BTreeSet::new();
    for url in &ar.srt_urls {
        let Some(port) = local_port(url) else {
            return Err(format!(
                "`ar.srt_urls`: {} is not http://127.0.0.1:PORT, where `ar.server` is started",
                service::without_credentials(url)
            ));
        };
        if !ports.insert(port) {
            return Err(format!("`ar.srt_urls` has port {port} twice"));
        }
    }
    if let Some(port) = others.intersection(&ports).next() {
        return Err(format!(
            "`ar.srt_urls` has port {port}, which `gateway` or `probes` has too"
        ));
    }
    let (devices, servers) = (ar.devices.len(), ar.srt_urls.len());
    if devices == 0 || devices % servers != 0 {
        return Err(format!(
            "`ar.devices` has {devices}, which the {servers} of `ar.srt_urls` cannot share evenly"
        ));
    }
    Ok(())
}

/// The servers of a file that was checked, which is in `folder`.
pub(super) fn servers(file: &FleetFile, folder: &Path) -> Vec<Server> {
    let Some((ar, ArServer { command })) = file
        .ar
        .as_ref()
        .and_then(|ar| Some((ar, ar.server.as_ref()?)))
    else {
        return Vec::new();
    };
    let model = file.model.as_deref().unwrap_or(Path::new(""));
    let model = folder.join(model).to_string_lossy().into_owned();
    let share = ar.devices.len().div_ceil(ar.srt_urls.len());
    let devices = ar.devices.chunks(share);
    let numbered = ar.srt_urls.iter().zip(devices).enumerate();
    let server = |(number, (url, devices)): (usize, (&String, &[u16]))| {
        let port = local_port(url).unwrap_or_default().to_string();
        let mut words = command
            .iter()
            .map(|word| word.replace(PORT, &port).replace(MODEL, &model));
        let program = words.next().unwrap_or_default();
        Server {
            pinned: pinned(file, format!("srt-{number}"), devices),
            url: url.trim_end_matches('/').to_owned(),
            // A mere name is looked for on the PATH.
            program: match program.contains('/') {
                true => folder.join(program),
                false => program.into(),
            },
            arguments: words.map(Into::into).collect(),
        }
    };
    numbered.map(server).collect()
}

/// The port of a URL that has nothing but a port of this machine.
fn local_port(url: &str) -> Option<u16> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let is_plain = url.scheme() == "http" && url.path() == "/" && url.username().is_empty();
    url.port_or_known_default().filter(|_| is_here && is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_port_of_this_machine_is_one() {
        let table = [
            ("http://127.0.0.1:30020", Some(30020)),
            ("http://127.0.0.1:30020/", Some(30020)),
            ("http://localhost:1", Some(1)),
            ("http://[::1]:1", Some(1)),
            ("http://127.0.0.1", Some(80)),
            ("http://10.0.0.1:1", None),
            ("http://127.0.0.1:1/ar", None),
            ("http://u:p@127.0.0.1:1", None),
            ("https://127.0.0.1:1", None),
            ("127.0.0.1:1", None),
        ];
        for (url, port) in table {
            assert_eq!(local_port(url), port, "{url}");
        }
    }
}
