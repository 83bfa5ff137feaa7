//! How far the pictures are: bars on a terminal, otherwise a line for each new stage.

use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use protocol::Stage;

use super::client::{Output, Status, Timings};
use crate::terminal;

/// What is shown while pictures are made.
pub(crate) enum Show {
    /// One bar a picture.
    Bars {
        /// Draws them.
        screen: MultiProgress,
        /// In the order of the outputs.
        bars: Vec<ProgressBar>,
    },
    /// What was said last of each.
    Lines(Vec<String>),
}

impl Show {
    /// For `outputs` pictures.
    pub(crate) fn new(outputs: usize) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines(vec![String::new(); outputs]);
        }
        let screen = MultiProgress::new();
        let style = ProgressStyle::with_template("picture {prefix} {bar:30} {msg}");
        let style = style.expect("the template is a constant that a test reads");
        let bar = |index: usize| {
            let bar = ProgressBar::new(1)
                .with_style(style.clone())
                .with_prefix(index.to_string());
            screen.add(bar)
        };
        let bars = (0..outputs).map(bar).collect();
        Self::Bars { screen, bars }
    }

    /// Shows how far `output` is.
    pub(crate) fn update(&mut self, output: &Output) {
        let index = usize::from(output.id.index.get());
        match self {
            Self::Bars { bars, .. } => {
                let Some(bar) = bars.get(index) else { return };
                if let (Some(step), Some(steps)) = (output.step, output.steps) {
                    bar.set_length(steps.into());
                    bar.set_position(step.into());
                    bar.set_message(format!("{} {step}/{steps}", state(output)));
                } else {
                    bar.set_message(state(output));
                }
            }
            Self::Lines(told) => {
                let Some(told) = told.get_mut(index) else {
                    return;
                };
                let now = state(output);
                if *told != now {
                    terminal::note(format_args!("picture {index}: {now}"));
                    now.clone_into(told);
                }
            }
        }
    }

    /// Takes the bars off the screen; lines stay.
    pub(crate) fn end(&self) {
        if let Self::Bars { screen, .. } = self
            && let Err(error) = screen.clear()
        {
            tracing::debug!(%error, "the terminal is gone");
        }
    }
}

/// What is being done for `output`, in the words of [`line()`].
fn state(output: &Output) -> &'static str {
    match (output.status, output.stage) {
        (Status::Queued, _) | (Status::InProgress, None) => "queued",
        (Status::InProgress, Some(Stage::Prior)) => "prior",
        (Status::InProgress, Some(Stage::Denoise)) => "denoise",
        (Status::InProgress, Some(Stage::Decode)) => "decode",
        (Status::Completed, _) => "done",
        (Status::Failed, _) => "failed",
        (Status::Cancelled, _) => "cancelled",
        (Status::Expired, _) => "expired",
    }
}

/// A finished picture's line: its file, its seed, what variations ask for, where the time went.
pub(crate) fn line(file: &std::path::Path, output: &Output, timings: Timings) -> String {
    let parts = [
        ("queue", timings.ar_wait_ms),
        ("prior", timings.ar_run_ms),
        ("wait", timings.denoise_wait_ms),
        ("denoise", timings.denoise_run_ms),
        ("decode", timings.decode_run_ms),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter_map(|(name, ms)| Some(format!("{name} {}", seconds((*ms)?))))
        .collect();
    let prior = output.prior_id.map(|id| format!("  prior-id {id}"));
    format!(
        "{}  seed {}{}  total {} s: {}",
        file.display(),
        output.seed,
        prior.unwrap_or_default(),
        seconds(timings.total_ms),
        parts.join(", ")
    )
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1_000, ms % 1_000)
}

#[cfg(test)]
mod tests {
    use protocol::{JobId, OutputIndex, PriorId};

    use super::*;

    #[test]
    fn a_line_tells_where_the_time_went() {
        let timings = Timings {
            ar_wait_ms: Some(12),
            ar_run_ms: Some(1_234),
            denoise_wait_ms: None,
            denoise_run_ms: Some(2_000),
            decode_run_ms: Some(0),
            total_ms: 3_500,
        };
        let mut output = Output {
            id: JobId::from_u128(1).output(OutputIndex::FIRST),
            seed: 7,
            prior_id: None,
            status: Status::Completed,
            stage: None,
            step: None,
            steps: None,
            error: None,
            timings: Some(timings),
        };
        let told = |output: &Output| line("out/a.png".as_ref(), output, timings);
        let parts = "total 3.500 s: queue 0.012, prior 1.234, denoise 2.000, decode 0.000";
        assert_eq!(told(&output), format!("out/a.png  seed 7  {parts}"));
        let id = PriorId::from_u128(0xab);
        output.prior_id = Some(id);
        let expected = format!("out/a.png  seed 7  prior-id {id}  {parts}");
        assert_eq!(told(&output), expected);
    }

    #[test]
    fn the_template_of_the_bars_is_valid() {
        assert!(ProgressStyle::with_template("picture {prefix} {bar:30} {msg}").is_ok());
    }
}
