//! `make screenshots`: the pictures of `observability/README.md`, from a run of the scenario that tests execute the
//! dashboards against.

use std::process::ExitCode;

use integration::{
    dashboards::{dashboards, folder},
    pictures,
    scenario::Scenario,
};

#[tokio::main]
#[expect(clippy::print_stderr, reason = "a program for people")]
async fn main() -> ExitCode {
    let scenario = Scenario::run().await;
    let pictures = folder().join("pictures");
    let mut drawn = std::fs::create_dir_all(&pictures).map_err(Into::into);
    for dashboard in dashboards() {
        let file = pictures.join(dashboard.file.replace(".json", ".svg"));
        if drawn.is_ok() {
            drawn = pictures::dashboard(&file, &dashboard, &scenario).await;
        }
    }
    let trace = pictures.join("trace.svg");
    match drawn.and_then(|()| pictures::trace(&trace, &scenario.retried())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
