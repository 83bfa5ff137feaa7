//! The files and folders that flags or a fleet's file name, looked at before the first process starts: one that cannot read its
//! own would tell of a flag that nobody wrote, after others have started.

use std::{
    error::Error,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use messaging::Access;
use replay::{Faults, Times};
use service::{
    AdminKey,
    exit::{Failure, chain},
};

use super::{
    fleet::{AR_BATCHER, DENOISER, GATEWAY},
    site::Site,
};
use crate::{args::UpArgs, nats};

/// What is wrong with what is named.
type Trouble = Box<dyn Error>;

/// Refuses what a process of these would refuse, by the name that it has where it was written.
pub(crate) fn check(args: &UpArgs, site: &Site) -> Result<(), Failure> {
    let refuse = |flag: &str, key: &str, trouble: Trouble| {
        let (name, text) = (written(args, flag, key), chain(&*trouble));
        Failure::Unusable(format!("{name}: {text}"))
    };
    let scale = args.replay.time_scale;
    let times = |file: &Path| Ok(Times::read(file, scale).map(drop)?);
    type Look<'a> = &'a dyn Fn(&Path) -> Result<(), Trouble>;
    let looks: [(&str, &str, &Option<PathBuf>, Look<'_>); 5] = [
        ("--model", "model", &args.model, &model),
        ("--times", "times", &args.replay.times, &times),
        ("--faults", "faults", &args.replay.faults, &faults),
        (
            "--admin-key-file",
            "admin_key_file",
            &args.admin_key_file,
            &admin_key,
        ),
        ("--tenants", "gateway.tenants", &args.tenants, &readable),
    ];
    for (flag, key, named, look) in looks {
        if let Some(path) = named {
            look(path).map_err(|trouble| refuse(flag, key, trouble))?;
        }
    }
    let ca = Access::files(None, site.ca.as_ref());
    let refused = |error: messaging::BusError| error.into();
    ca.check()
        .map_err(|error| refuse("--nats-ca", "broker.ca", refused(error)))?;
    for role in roles(site) {
        let credentials = Access::files(site.access(role).credentials.as_ref(), None);
        let checked = credentials.check();
        checked
            .map_err(|error| refuse("--nats-credentials", "broker.credentials", refused(error)))?;
    }
    Ok(())
}

/// Where somebody wrote what `flag` says: there, or as `key` of a fleet's file.
pub(crate) fn written(args: &UpArgs, flag: &str, key: &str) -> String {
    match &args.fleet {
        Some(file) => format!("--fleet {}: `{key}`", file.display()),
        None => flag.to_owned(),
    }
}

/// As whom processes here come to the broker.
fn roles(site: &Site) -> impl Iterator<Item = &'static str> {
    let there = [
        (nats::WATCHER, true),
        (GATEWAY, site.gateway.is_some()),
        (AR_BATCHER, site.ar_batcher.is_some()),
        (DENOISER, !site.denoisers.is_empty()),
    ];
    there
        .into_iter()
        .filter_map(|(role, there)| there.then_some(role))
}

fn model(folder: &Path) -> Result<(), Trouble> {
    match folder.is_dir() {
        true => Ok(()),
        false => Err(format!("no such folder: {}", folder.display()).into()),
    }
}

/// One that is not there is one without failures.
fn faults(file: &Path) -> Result<(), Trouble> {
    Ok(Faults::open(Some(file)).map(drop)?)
}

fn admin_key(file: &Path) -> Result<(), Trouble> {
    let read = AdminKey::read(file).map(drop);
    read.map_err(|error| format!("{} {error}", file.display()).into())
}

/// What is in it only the gateway understands.
fn readable(file: &Path) -> Result<(), Trouble> {
    let read = File::open(file).and_then(|mut opened| opened.read(&mut [0]));
    match read {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{} cannot be read: {error}", file.display()).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::up::file;

    /// What is right, with every file that there may be.
    const RIGHT: &str = r#"
engine = "replay"
times = "times.json"
faults = "faults.json"
admin_key_file = "admin.key"
[broker]
urls = ["tls://127.0.0.1:4222"]
credentials = "keys"
ca = "ca.pem"
[gateway]
listen = "127.0.0.1:0"
tenants = "tenants.toml"
[ar]
devices = [0]
[denoisers]
devices = [1]
"#;

    /// What `fresco up --fleet` of such a file in `folder` says before anything starts.
    fn checked(folder: &Path) -> Result<(), String> {
        let path = folder.join("fleet.toml");
        let args = UpArgs::of_fleet(&path).expect("flags of ours");
        let (args, site) = file::read(&path, &args).map_err(|failure| failure.to_string())?;
        check(&args, &site).map_err(|failure| failure.to_string())
    }

    fn good_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let times = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/times/ascend.json");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("a writable folder");
        };
        write("fleet.toml", RIGHT);
        write("times.json", &fs::read_to_string(times).expect("ours"));
        write("faults.json", "[]");
        write("admin.key", "0123456789abcdef\n");
        write("ca.pem", "-----BEGIN CERTIFICATE-----\n");
        write("tenants.toml", "# the gateway's to understand\n");
        fs::create_dir(folder.path().join("keys")).expect("a writable folder");
        for role in [nats::WATCHER, GATEWAY, AR_BATCHER, DENOISER] {
            write(&format!("keys/{role}.nk"), "user:password\n");
        }
        folder
    }

    #[test]
    fn a_file_that_no_process_could_use_is_told_by_its_key() {
        // The file, what is in it, if it is there, and its key; no key where that is right.
        let table = [
            ("times.json", None, "`times`"),
            ("times.json", Some("{}"), "`times`"),
            ("faults.json", None, ""),
            ("faults.json", Some("{"), "`faults`"),
            ("admin.key", None, "`admin_key_file`"),
            ("admin.key", Some("short"), "`admin_key_file`"),
            ("tenants.toml", None, "`gateway.tenants`"),
            ("ca.pem", None, "`broker.ca`"),
            ("ca.pem", Some("none"), "`broker.ca`"),
            ("keys/watcher.nk", None, "`broker.credentials`"),
            ("keys/gateway.nk", None, "`broker.credentials`"),
            ("keys/ar-batcher.nk", Some("none"), "`broker.credentials`"),
            ("keys/denoiser.nk", None, "`broker.credentials`"),
        ];
        let folder = good_folder();
        assert_eq!(checked(folder.path()), Ok(()));
        for (name, text, key) in table {
            let folder = good_folder();
            let file = folder.path().join(name);
            match text {
                Some(text) => fs::write(&file, text).expect("a writable folder"),
                None => fs::remove_file(&file).expect("it is there"),
            }
            let told = checked(folder.path()).err().unwrap_or_default();
            assert!(told.contains(key), "{name} {text:?}: {told}");
            assert_eq!(told.is_empty(), key.is_empty(), "{name} {text:?}: {told}");
        }
    }

    #[test]
    fn only_the_credentials_of_who_runs_here_are_asked_for() {
        let folder = good_folder();
        let text = RIGHT.split("[gateway]").next().expect("the file's begin");
        let text = format!("{text}[denoisers]\ndevices = [1]\n");
        fs::write(folder.path().join("fleet.toml"), text).expect("a writable folder");
        for role in [GATEWAY, AR_BATCHER] {
            let file = folder.path().join(format!("keys/{role}.nk"));
            fs::remove_file(file).expect("it is there");
        }
        assert_eq!(checked(folder.path()), Ok(()));
    }
}
