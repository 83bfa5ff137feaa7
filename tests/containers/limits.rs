//! What a container may do and take.

use crate::files::{Dockerfile, Mount, composes, services};

#[test]
fn no_container_is_root_has_a_capability_or_a_root_folder_it_could_write() {
    let dockerfile = Dockerfile::read();
    let mut seen = 0;
    for (name, service) in services() {
        let Some(image) = &service.image else {
            continue; // an addition to one that was looked at
        };
        seen += 1;
        assert!(service.read_only, "{name}");
        assert_eq!(service.cap_drop, ["ALL"], "{name}");
        assert_eq!(service.security_opt, ["no-new-privileges:true"], "{name}");
        let target = service.build.as_ref().map(|build| &build.target);
        let of_image = target.and_then(|target| dockerfile.last(target, "USER"));
        let user = service.user.as_deref().or(of_image);
        // Gives volumes to who writes there, and ends.
        if name == "volume-owner" {
            assert_eq!(
                (user, &*service.cap_add),
                (Some("0"), &["CHOWN".to_owned()][..])
            );
            assert_eq!(service.entrypoint[0], "chown");
        } else {
            assert!(
                user.is_some_and(|user| user != "0" && user != "root"),
                "{name}: {image}"
            );
            assert!(service.cap_add.is_empty(), "{name}");
        }
    }
    assert!(seen >= 11, "{seen} services");
}

#[test]
fn no_container_fills_the_disk_with_its_log_or_the_host_with_threads() {
    let mut seen = 0;
    for (name, service) in services() {
        if service.image.is_none() {
            continue; // sends its lines elsewhere, see below
        }
        seen += 1;
        let logging = service.logging.as_ref();
        let logging = logging.unwrap_or_else(|| panic!("{name} logs as the engine likes"));
        assert_eq!(logging.driver, "json-file", "{name}");
        for bound in ["max-size", "max-file"] {
            assert!(logging.options.contains_key(bound), "{name}: {bound}");
        }
        assert!(service.pids_limit.is_some_and(|limit| limit > 0), "{name}");
    }
    assert!(seen >= 11, "{seen} services");
}

#[test]
fn what_is_mounted_is_there_and_read_only_and_volumes_are_named() {
    for compose in composes() {
        for (name, service) in &compose.services {
            for (path, mount) in service.mounted() {
                assert!(path.exists(), "{name}: {}", path.display());
                assert!(mount.read_only, "{name}: {}", mount.target);
            }
            for Mount { source, .. } in service.volumes.iter().filter(|m| m.path().is_none()) {
                assert!(compose.volumes.contains_key(source), "{name}: {source}");
            }
        }
    }
}

/// An empty folder, root's, would be what its workers load, and they would start again for ever.
#[test]
fn a_folder_that_somebody_names_wrongly_is_told_and_not_made() {
    let mut seen = 0;
    for (name, service) in services() {
        let chosen = service.volumes.iter();
        for mount in chosen.filter(|mount| mount.source.contains('$')) {
            assert!(!mount.is_made, "{name}: {}", mount.source);
            seen += 1;
        }
    }
    assert_eq!(seen, 2, "the model, of each kind of worker");
}
