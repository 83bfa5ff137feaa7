//! The name of this machine, for lists of workers.

/// As the operating system has it; `unknown` where it has none that is text.
pub fn name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned())
}
