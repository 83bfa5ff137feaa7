//! The embedded broker: which program, with which configuration, on which port.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read as _},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

use protocol::limits::PAYLOAD_BYTES_MAX;
use tokio::process::Command;

use crate::secret::write_secret;

/// The first version that writes a stream as `protocol::topology::PersistMode` says.
pub(crate) const VERSION_MIN: (u32, u32) = (2, 12);
/// `nats-server --version` answers in milliseconds.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a `nats-server` may be.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The user's own; then nothing else is tried.
    pub(crate) given: Option<PathBuf>,
    /// Folders below or above which `.fresco/bin` may be.
    pub(crate) near: Vec<PathBuf>,
    /// Where `make setup` keeps its downloads.
    pub(crate) cache: Option<PathBuf>,
}

/// No `nats-server` that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MissingError {
    /// Nowhere.
    #[error(
        "no nats-server 2.12 or newer found: run `make setup`, put one on the PATH, or give --nats-server FILE or --nats-url URL"
    )]
    Nowhere,
    /// The user's own is none.
    #[error("--nats-server {}: {reason}", path.display())]
    Given {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The first usable program.
pub(crate) async fn find(places: &Places) -> Result<PathBuf, MissingError> {
    if let Some(path) = &places.given {
        let refuse = |reason: String| MissingError::Given {
            path: path.clone(),
            reason,
        };
        return match version(path).await {
            Ok(version) if version >= VERSION_MIN => Ok(path.clone()),
            Ok((major, minor)) => Err(refuse(format!(
                "is version {major}.{minor}, 2.12 or newer is needed"
            ))),
            Err(error) => Err(refuse(error.to_string())),
        };
    }
    for candidate in candidates(places) {
        match version(&candidate).await {
            Ok(version) if version >= VERSION_MIN => return Ok(candidate),
            Ok((major, minor)) => {
                tracing::info!(path = %candidate.display(), major, minor, "nats-server is too old")
            }
            Err(error) => tracing::debug!(path = %candidate.display(), %error, "no nats-server"),
        }
    }
    Err(MissingError::Nowhere)
}

/// In the order of preference: what the user installed, what this checkout set up, what any checkout set up.
fn candidates(places: &Places) -> Vec<PathBuf> {
    // A bare name is looked up on the PATH by whoever runs it.
    let mut found = vec![PathBuf::from("nats-server")];
    for folder in &places.near {
        found.extend(
            folder
                .ancestors()
                .map(|folder| folder.join(".fresco/bin/nats-server"))
                .find(|file| file.is_file()),
        );
    }
    let cached = places
        .cache
        .as_ref()
        .and_then(|cache| fs::read_dir(cache).ok());
    let folders = cached.into_iter().flatten().flatten();
    let mut folders: Vec<_> = folders
        .filter(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("nats-server-")
        })
        .collect();
    folders.sort_by_key(|entry| std::cmp::Reverse(entry.file_name()));
    found.extend(folders.iter().map(|entry| entry.path().join("nats-server")));
    found
}

/// Major and minor version of the program.
async fn version(program: &Path) -> io::Result<(u32, u32)> {
    let output = Command::new(program)
        .arg("--version")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, output)
        .await
        .map_err(io::Error::from)??;
    parse_version(&String::from_utf8_lossy(&output.stdout))
        .ok_or_else(|| io::Error::other("does not tell a nats-server version"))
}

/// From `nats-server: v2.15.1`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("nats-server: v")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Where it listens on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) clients: u16,
    /// Of whoever asks whether it is well.
    pub(crate) monitor: u16,
}

/// Ports that stay the same over restarts, so that workers started by hand find the broker again; another one when
/// someone else has taken it meanwhile.
pub(crate) fn ports(data: &Path) -> io::Result<Ports> {
    // While the first one is held: they must not be the same.
    let clients = kept(&data.join("nats.port"))?;
    let monitor = kept(&data.join("nats.monitor.port"))?;
    Ok(Ports {
        clients: clients.local_addr()?.port(),
        monitor: monitor.local_addr()?.port(),
    })
}

/// The port of `file`, held; any free one where it has none that is free.
fn kept(file: &Path) -> io::Result<TcpListener> {
    let hold = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let port = fs::read_to_string(file).ok();
    let port = port.and_then(|text| text.trim().parse::<u16>().ok());
    if let Some(held) = port
        .filter(|port| *port != 0)
        .and_then(|port| hold(port).ok())
    {
        return Ok(held);
    }
    let held = hold(0)?;
    fs::write(file, held.local_addr()?.port().to_string())?;
    Ok(held)
}

/// The user of the broker's system account.
pub(crate) const SYSTEM_USER: &str = "fresco-watch";

/// Bytes of chance in its password: beyond guessing.
const PASSWORD_BYTES: usize = 16;

/// The password of the broker's system account. Kept, so that a `fresco watch` started by hand outlives a restart.
pub(crate) fn system_password(data: &Path) -> io::Result<String> {
    let file = data.join("system.password");
    // A power cut may leave a file without its text.
    if let Ok(kept) = fs::read_to_string(&file)
        && kept.len() == 2 * PASSWORD_BYTES
    {
        return Ok(kept);
    }
    let mut bytes = [0; PASSWORD_BYTES];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut password = String::new();
    for byte in bytes {
        write!(password, "{byte:02x}").expect("a String takes every text");
    }
    write_secret(&file, &password)?;
    Ok(password)
}

/// The configuration file. Figures are measured ones (ARCHITECTURE.md, "The bus").
pub(crate) fn config(data: &Path, ports: Ports, system_password: &str) -> String {
    let mut text = String::from("# Written by `fresco up` at each start.\n");
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key}: {value}").expect("a String takes every text")
    };
    line("server_name", "fresco");
    line("listen", &quoted(&format!("127.0.0.1:{}", ports.clients)));
    line("http", &quoted(&format!("127.0.0.1:{}", ports.monitor)));
    // The largest picture is one message; a gateway may be some of them behind before it is cut off.
    line("max_payload", &PAYLOAD_BYTES_MAX.to_string());
    line("max_pending", "256MB");
    line("write_deadline", &quoted("10s"));
    // A worker that is frozen or cut off is noticed after 12 s instead of 5 min.
    line("ping_interval", &quoted("5s"));
    line("ping_max", "2");
    // For the watcher of lost connections alone, so it may do nothing else. With a system account and nothing else the
    // server lets everybody else into the global account as before, without credentials.
    writeln!(
        text,
        "accounts {{ \"$SYS\": {{ users: [ {{ user: {}, password: {}, permissions: {{ publish: {{ deny: \">\" }}, \
         subscribe: {{ allow: [ \"$SYS.ACCOUNT.*.CONNECT\", \"$SYS.ACCOUNT.*.DISCONNECT\" ] }} }} }} ] }} }}",
        quoted(SYSTEM_USER),
        quoted(system_password)
    )
    .expect("a String takes every text");
    let store = quoted(&data.join("nats").to_string_lossy());
    // `always`: what is acknowledged survives a power cut. The sizes cover the streams' limits, which the server
    // reserves, whatever the disk has free: its default of 3/4 of the disk refuses them on a small one.
    writeln!(
        text,
        "jetstream {{ store_dir: {store}, sync_interval: always, max_mem: 256MB, max_file: 32GB }}"
    )
    .expect("a String takes every text");
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_the_measured_one() {
        let expected = "\
# Written by `fresco up` at each start.
server_name: fresco
listen: \"127.0.0.1:4333\"
http: \"127.0.0.1:4334\"
max_payload: 16777216
max_pending: 256MB
write_deadline: \"10s\"
ping_interval: \"5s\"
ping_max: 2
accounts { \"$SYS\": { users: [ { user: \"fresco-watch\", password: \"secret\", permissions: { publish: { deny: \">\" }, subscribe: { allow: [ \"$SYS.ACCOUNT.*.CONNECT\", \"$SYS.ACCOUNT.*.DISCONNECT\" ] } } } ] } }
jetstream { store_dir: \"/d/a \\\"b\\\"/nats\", sync_interval: always, max_mem: 256MB, max_file: 32GB }
";
        let ports = Ports {
            clients: 4333,
            monitor: 4334,
        };
        let written = config(Path::new("/d/a \"b\""), ports, "secret");
        assert_eq!(written, expected);
    }

    #[test]
    fn versions_are_read_from_what_the_server_says() {
        assert_eq!(parse_version("nats-server: v2.15.1\n"), Some((2, 15)));
        assert_eq!(parse_version("nats-server: v2.12.0-RC.3"), Some((2, 12)));
        for text in [
            "",
            "nats-server: 2.12",
            "GNU bash, version 5.2",
            "nats-server: v2",
        ] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }

    #[test]
    fn a_port_is_kept_until_someone_else_has_it() {
        let data = tempfile::tempdir().expect("a temporary folder");
        let first = ports(data.path()).expect("free ports");
        assert_ne!(first.clients, first.monitor);
        assert_eq!(ports(data.path()).expect("still free"), first);
        let take = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("it was free");
        let taken = take(first.clients);
        let second = ports(data.path()).expect("free ports");
        assert_ne!(second.clients, first.clients);
        assert_eq!(second.monitor, first.monitor, "nobody has taken it");
        drop(taken);
        assert_eq!(ports(data.path()).expect("still free"), second);
        let taken = take(second.monitor);
        let third = ports(data.path()).expect("free ports");
        assert_eq!(third.clients, second.clients, "nobody has taken it");
        assert_ne!(third.monitor, second.monitor);
        drop(taken);
    }

    #[test]
    fn the_system_password_is_kept_and_nobody_else_may_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let data = tempfile::tempdir().expect("a temporary folder");
        let password = system_password(data.path()).expect("a writable folder");
        assert_eq!(password.len(), 2 * PASSWORD_BYTES);
        assert_eq!(system_password(data.path()).expect("it is there"), password);
        let open = data.path().join("nats.conf");
        fs::write(&open, "of an older version, for all to read").expect("a writable folder");
        write_secret(&open, "secret").expect("a writable folder");
        for file in ["system.password", "nats.conf"] {
            let metadata = fs::metadata(data.path().join(file)).expect("it is there");
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{file}");
        }
        let other = tempfile::tempdir().expect("a temporary folder");
        let emptied = other.path().join("system.password");
        fs::write(emptied, "").expect("a writable folder");
        assert_ne!(
            system_password(other.path()).expect("a writable folder"),
            password
        );
        let anew = system_password(other.path()).expect("it is there");
        assert_eq!(anew.len(), 2 * PASSWORD_BYTES, "a power cut emptied it");
    }

    /// A program that answers `--version` like a nats-server.
    fn fake(path: &Path, version: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a writable folder");
        fs::write(path, format!("#!/bin/sh\necho 'nats-server: v{version}'\n"))
            .expect("a writable folder");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our file");
        path.to_owned()
    }

    #[test]
    fn the_nearest_program_comes_first() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let near = fake(
            &root.path().join("checkout/.fresco/bin/nats-server"),
            "2.12.1",
        );
        let old = fake(
            &root.path().join("cache/nats-server-2.12.0-aa/nats-server"),
            "2.12.0",
        );
        let new = fake(
            &root.path().join("cache/nats-server-2.15.1-bb/nats-server"),
            "2.15.1",
        );
        let places = Places {
            given: None,
            near: vec![
                root.path().join("checkout/target/debug"),
                root.path().join("elsewhere"),
            ],
            cache: Some(root.path().join("cache")),
        };
        assert_eq!(
            candidates(&places),
            [PathBuf::from("nats-server"), near, new, old]
        );
    }

    #[tokio::test]
    async fn a_given_program_must_be_new_enough() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let given = |name: &str, version: &str| {
            let path = fake(&root.path().join(name), version);
            Places {
                given: Some(path),
                ..Places::default()
            }
        };
        assert!(find(&given("new", "2.12.0")).await.is_ok());
        assert!(matches!(
            find(&given("old", "2.11.9")).await,
            Err(MissingError::Given { .. })
        ));
        let none = Places {
            given: Some(root.path().join("none")),
            ..Places::default()
        };
        assert!(matches!(find(&none).await, Err(MissingError::Given { .. })));
    }
}
