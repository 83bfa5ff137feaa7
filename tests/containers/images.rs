//! What images are made of.

use std::fs;

use integration::root;

use crate::files::{Dockerfile, Stage, services};

/// Compose asks Docker Hub for an image that is not here, and anybody may own the name there.
#[test]
fn what_is_built_here_is_asked_of_no_registry() {
    let mut built = 0;
    for (name, service) in services() {
        if service.build.is_some() {
            assert_eq!(service.pull_policy.as_deref(), Some("build"), "{name}");
            built += 1;
        }
    }
    assert!(built >= 7, "{built} services");
}

/// What only runs beside a program, and what no program is made of, costs no compilation.
#[test]
fn nothing_is_compiled_or_fetched_again_for_what_programs_are_not_made_of() {
    let dockerfile = Dockerfile::read();
    let copied = |stage: &Stage| -> Vec<String> {
        let copies = stage.lines.iter();
        let copies = copies.filter_map(|line| line.strip_prefix("COPY "));
        let here = copies.filter(|copy| !copy.starts_with("--from"));
        let words = here.flat_map(|copy| {
            let words: Vec<_> = copy.split(' ').filter(|w| !w.starts_with("--")).collect();
            let sources = words[..words.len() - 1].iter().map(ToString::to_string);
            sources.collect::<Vec<_>>()
        });
        words.collect()
    };
    let mut of_all = Vec::new();
    for (name, stage) in &dockerfile.0 {
        let sources = copied(stage);
        if name != "run" {
            for source in &sources {
                let harmless = source != "." && !source.starts_with("docker/");
                assert!(harmless, "{name} copies {source}");
            }
        }
        of_all.extend(sources);
    }
    // And whatever else lies around does not even reach the engine.
    let text = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let mut rules = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(rules.next(), Some("*"));
    let sent: Vec<_> = rules.filter_map(|rule| rule.strip_prefix("!/")).collect();
    assert!(sent.len() >= 8, "{sent:?}");
    for path in sent {
        let path = path.trim_end_matches('/');
        let used = |source: &String| {
            let source = source.replace("[r]", "r");
            path.starts_with(&source) || source.starts_with(path)
        };
        assert!(of_all.iter().any(used), "nothing copies {path}");
    }
}
