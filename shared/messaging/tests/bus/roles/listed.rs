//! The lists of `infra/nats/roles.conf`, read as far as they are written there.

use super::probe::Verb;
use crate::secured::ROLES;

/// One subject of a list, with its wildcards.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) role: String,
    pub(super) verb: Verb,
    pub(super) pattern: String,
}

pub(super) fn listed() -> Vec<Listed> {
    let text = include_str!("../../../../../infra/nats/roles.conf");
    let (mut role, mut verb) = (None, Verb::Publish);
    let mut found = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap()) {
        let key = line.split_once("$FRESCO_").map(|(_, key)| key.trim());
        if let Some(key) = key.and_then(|key| key.strip_suffix("_KEY")) {
            role = Some(key.to_lowercase().replace('_', "-"));
        }
        if line.contains("publish:") {
            verb = Verb::Publish;
        }
        if line.contains("subscribe:") {
            verb = Verb::Subscribe;
        }
        let Some(role) = role.as_ref().filter(|_| !line.contains("deny:")) else {
            continue;
        };
        found.extend(line.split('"').skip(1).step_by(2).map(|pattern| Listed {
            role: role.clone(),
            verb,
            pattern: pattern.to_owned(),
        }));
    }
    found
}

/// Whether each subject of `other` is one of `pattern`.
pub(super) fn covers(pattern: &str, other: &str) -> bool {
    let (mut pattern, mut other) = (pattern.split('.'), other.split('.'));
    loop {
        match (pattern.next(), other.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(one), Some(token)) if one == token => {}
            _ => return false,
        }
    }
}

/// Whether one subject is of both.
fn meet(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[test]
fn a_list_is_read_as_the_server_reads_it() {
    let table = [
        // Pattern, another one, whether the first has all of it, whether they have one in common.
        ("a.b", "a.b", true, true),
        ("a.b", "a.c", false, false),
        ("a.b", "a.b.c", false, false),
        ("a.*", "a.b", true, true),
        ("a.*", "a.b.c", false, false),
        ("a.*", "a.>", false, true),
        ("a.>", "a.*", true, true),
        ("a.>", "a.b.c", true, true),
        ("a.>", "a", false, false),
        ("*.b", "a.*", false, true),
        ("a.b.>", "*.*.c.>", false, true),
    ];
    for (one, other, covered, met) in table {
        assert_eq!(covers(one, other), covered, "{one} {other}");
        assert_eq!((meet(one, other), meet(other, one)), (met, met), "{one}");
    }
    let mut roles: Vec<_> = listed().into_iter().map(|one| one.role).collect();
    roles.dedup();
    assert_eq!(roles, ROLES);
}

/// A pattern that crosses another, with neither within the other, lets through what was meant for the other alone: a denoiser's
/// `$JS.ACK.*.*.fresco-DN.>` once let it ack messages of `$JS.ACK.fresco-AR.>`.
#[test]
fn no_two_patterns_cross() {
    let listed = listed();
    for one in &listed {
        for other in listed.iter().filter(|other| other.verb == one.verb) {
            let (a, b) = (&one.pattern, &other.pattern);
            assert!(
                !meet(a, b) || covers(a, b) || covers(b, a),
                "{one:?} crosses {other:?}"
            );
        }
    }
}
