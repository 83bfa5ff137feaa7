//! `fresco nats keys`: a credential for each role of `infra/nats/roles.conf`.

use std::{fmt::Write as _, fs, path::Path};

use messaging::UserKey;
use service::exit::Failure;

use crate::{secret::write_secret, terminal};

/// The roles, as `roles.conf` names their keys.
const ROLES: [&str; 7] = [
    "gateway",
    "ar-batcher",
    "denoiser",
    "operator",
    "watcher",
    "admin",
    "system",
];

/// The server's part: public halves only.
const CONFIG: &str = "keys.conf";

/// Makes `folder` and writes the keys into it. Keys that are there are never replaced: whoever uses them would be locked
/// out.
pub(super) fn make(folder: &Path) -> Result<(), Failure> {
    let failed = |file: &Path, error: &std::io::Error| {
        Failure::Failed(format!("cannot write {}: {error}", file.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    let config = folder.join(CONFIG);
    let seeds = ROLES.map(|role| folder.join(format!("{role}.nk")));
    if let Some(there) = seeds.iter().chain([&config]).find(|file| file.exists()) {
        let text = format!("{} is there already: nothing is written", there.display());
        return Err(Failure::Failed(text));
    }
    let mut text =
        String::from("# By `fresco nats keys`: the public halves, which are no secret.\n");
    for (role, file) in ROLES.iter().zip(&seeds) {
        let key = UserKey::generate();
        writeln!(text, "{}: {}", variable(role), key.public).expect("a String takes every text");
        write_secret(file, &key.seed).map_err(|error| failed(file, &error))?;
        terminal::say(format_args!(
            "{} (secret): --nats-credentials of {role}",
            file.display()
        ));
    }
    fs::write(&config, text).map_err(|error| failed(&config, &error))?;
    terminal::say(format_args!(
        "{}: for the servers, beside roles.conf",
        config.display()
    ));
    Ok(())
}

fn variable(role: &str) -> String {
    format!("FRESCO_{}_KEY", role.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_role_of_the_configuration_gets_a_key_that_only_its_owner_reads() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let keys = folder.path().join("keys");
        make(&keys).expect("an empty folder");
        let config = fs::read_to_string(keys.join(CONFIG)).expect("it is written");
        let roles = include_str!("../../../../infra/nats/roles.conf");
        let used = roles
            .lines()
            .filter_map(|line| line.trim().strip_prefix("nkey: $"));
        let used: Vec<_> = used.collect();
        assert_eq!(used, ROLES.map(variable));
        for role in ROLES {
            let file = keys.join(format!("{role}.nk"));
            let mode = fs::metadata(&file)
                .expect("it is written")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{role}");
            let seed = fs::read_to_string(&file).expect("it is ours");
            assert!(seed.starts_with("SU") && !config.contains(&seed), "{role}");
        }
        let refused = make(&keys);
        assert!(matches!(refused, Err(Failure::Failed(_))), "{refused:?}");
        assert_eq!(fs::read_to_string(keys.join(CONFIG)).ok(), Some(config));
    }
}
