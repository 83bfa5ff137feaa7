//! `fresco nats keys`: a credential for each role of `infra/nats/roles.conf`.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::Path,
};

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

const HEADER: &str = "# By `fresco nats keys`: the public halves, which are no secret.\n";

/// Makes `folder` and adds what it lacks: a later version may have more roles. Keys that are there are never replaced: whoever
/// uses them would be locked out.
pub(super) fn make(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| unwritable(folder, &error))?;
    let config = folder.join(CONFIG);
    let known = read(&config)?.unwrap_or_default();
    let mut lines = String::new();
    for role in ROLES {
        let file = folder.join(format!("{role}.nk"));
        if has_line(&known, role) {
            say_left(role, &file);
            continue;
        }
        // The line comes last: were it there without the private half, no later call could make that.
        let public = public_half(role, &file)?;
        writeln!(lines, "{}: {public}", variable(role)).expect("a String takes every text");
    }
    if !lines.is_empty() {
        append(&config, &known, &lines).map_err(|error| unwritable(&config, &error))?;
    }
    terminal::say(format_args!(
        "{}: for the servers, beside roles.conf",
        config.display()
    ));
    Ok(())
}

/// Of the private half in `file`, which is made where there is none.
fn public_half(role: &str, file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    if let Some(seed) = read(file)? {
        let Some(key) = UserKey::of_seed(&seed) else {
            let text = format!("{shown} is there already, and is no nkey seed of a user");
            return Err(Failure::Failed(text));
        };
        terminal::say(format_args!(
            "{shown} is there already: its line is added to {CONFIG}"
        ));
        return Ok(key.public);
    }
    let key = UserKey::generate();
    write_secret(file, &key.seed).map_err(|error| unwritable(file, &error))?;
    terminal::say(format_args!(
        "{shown} (secret): --nats-credentials of {role}"
    ));
    Ok(key.public)
}

/// The private half of a line that is there may be anywhere: `admin.nk` is kept away.
fn say_left(role: &str, file: &Path) {
    let (shown, name) = (file.display(), variable(role));
    if file.exists() {
        terminal::say(format_args!("{shown} is there already: left as it is"));
    } else {
        terminal::say(format_args!(
            "{name} is in {CONFIG} already: left as it is, and {shown} is not made"
        ));
    }
}

/// `None` where there is no such file.
fn read(file: &Path) -> Result<Option<String>, Failure> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let text = format!("cannot read {}: {error}", file.display());
            Err(Failure::Failed(text))
        }
    }
}

/// Adds `lines` to the file, which holds `known` and keeps it.
fn append(config: &Path, known: &str, lines: &str) -> io::Result<()> {
    let before = match known {
        "" => HEADER,
        text if text.ends_with('\n') => "",
        _ => "\n",
    };
    let mut options = fs::File::options();
    let mut opened = options.append(true).create(true).open(config)?;
    opened.write_all(format!("{before}{lines}").as_bytes())
}

fn unwritable(file: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", file.display()))
}

/// Whether `config` sets the variable of `role`; the server takes it with a colon, with a `=` and with neither.
fn has_line(config: &str, role: &str) -> bool {
    let name = variable(role);
    let sets = |line: &str| {
        let rest = line.trim_start().strip_prefix(name.as_str());
        rest.is_some_and(|rest| rest.starts_with([':', '=', ' ', '\t']))
    };
    config.lines().any(sets)
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
        make(&keys).expect("nothing is missing");
        assert_eq!(fs::read_to_string(keys.join(CONFIG)).ok(), Some(config));
    }

    #[test]
    fn a_folder_of_yesterday_gets_what_it_lacks_and_keeps_what_it_has() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| folder.path().join(name);
        let text = |name: &str| fs::read_to_string(file(name)).expect("it is there");
        let public = |name: &str| UserKey::of_seed(&text(name)).expect("a seed").public;
        make(folder.path()).expect("an empty folder");
        let seeds = ["denoiser.nk", "watcher.nk"].map(text);
        // One role is new, of one the line is lost, and of one the private half is only where it is used.
        let lines = text(CONFIG);
        let kept = lines
            .lines()
            .filter(|line| !line.contains("_ADMIN_") && !line.contains("_WATCHER_"));
        let kept = kept.collect::<Vec<_>>().join("\n");
        fs::write(file(CONFIG), &kept).expect("it is ours");
        fs::remove_file(file("admin.nk")).expect("it is ours");
        fs::remove_file(file("gateway.nk")).expect("it is ours");

        make(folder.path()).expect("it has some");
        let wanted = format!(
            "{kept}\nFRESCO_WATCHER_KEY: {}\nFRESCO_ADMIN_KEY: {}\n",
            public("watcher.nk"),
            public("admin.nk")
        );
        assert_eq!(text(CONFIG), wanted);
        assert_eq!(["denoiser.nk", "watcher.nk"].map(text), seeds);
        assert!(!file("gateway.nk").exists());
    }

    #[test]
    fn what_is_no_private_half_is_refused_and_stays() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("operator.nk");
        fs::write(&file, "operator:password").expect("it is ours");
        let refused = make(folder.path());
        assert!(matches!(refused, Err(Failure::Failed(_))), "{refused:?}");
        let left = fs::read_to_string(&file).expect("it is there");
        assert_eq!(left, "operator:password");
    }

    #[test]
    fn a_variable_is_set_by_its_own_line_only() {
        for (line, wanted) in [
            ("FRESCO_ADMIN_KEY: U1", true),
            ("  FRESCO_ADMIN_KEY = U1", true),
            ("FRESCO_ADMIN_KEY=U1", true),
            ("FRESCO_ADMIN_KEY U1", true),
            ("# FRESCO_ADMIN_KEY: U1", false),
            ("FRESCO_ADMIN_KEY_OLD: U1", false),
            ("", false),
        ] {
            assert_eq!(has_line(line, "admin"), wanted, "{line}");
        }
    }
}
