//! Flags of the roles that can replay instead of running a model.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, error::ErrorKind};

/// What the replay engine replays, for a command that has a flag `--engine` with the value `replay`.
#[derive(Debug, Clone, clap::Args)]
pub struct ReplayArgs {
    /// JSON file with the times that `--engine replay` takes for its stages
    #[arg(
        long,
        value_name = "FILE",
        requires = "engine",
        required_if_eq("engine", "replay")
    )]
    pub times: Option<PathBuf>,

    /// Multiplies every time of `--times`
    #[arg(long, value_name = "FACTOR", requires = "times", default_value_t = 1.0, value_parser = factor)]
    pub time_scale: f64,

    /// JSON file with the failures of `--engine replay`, read at every job; a missing file is none
    #[arg(long, value_name = "FILE", requires = "times")]
    pub faults: Option<PathBuf>,
}

impl ReplayArgs {
    /// The times to replay; clap has seen to it that there are some.
    pub fn times_file(&self) -> &Path {
        let times = self.times.as_deref();
        times.expect("clap requires --times with --engine replay")
    }

    /// For the other engines of the command `A`: an error when there is something to replay. clap can tie a flag to
    /// another one's presence, but not forbid it beside one of that one's values.
    pub fn refuse<A: CommandFactory>(&self) -> Result<(), clap::Error> {
        match self.times {
            None => Ok(()),
            Some(_) => Err(A::command().error(
                ErrorKind::ArgumentConflict,
                "--times can only be used with --engine replay",
            )),
        }
    }
}

/// A number above 0.
fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() => Ok(factor),
        Ok(_) | Err(_) => Err("not a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};

    use super::*;
    use crate::ModelArgs;

    #[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
    enum Engine {
        Native,
        Replay,
    }

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, value_enum, default_value_t = Engine::Native)]
        engine: Engine,
        #[command(flatten)]
        model: ModelArgs,
        #[command(flatten)]
        replay: ReplayArgs,
    }

    fn parsed(flags: &str) -> Result<Args, ErrorKind> {
        checked(flags).map_err(|error| error.kind())
    }

    fn checked(flags: &str) -> Result<Args, clap::Error> {
        let flags = std::iter::once("worker").chain(flags.split_whitespace());
        let args = Args::try_parse_from(flags)?;
        if args.engine == Engine::Native {
            args.replay.refuse::<Args>()?;
            args.model.require::<Args>()?;
        }
        Ok(args)
    }

    #[test]
    fn an_engine_asks_for_what_it_takes_and_no_other_does() {
        for (flags, asked, other) in [
            ("--engine replay", "--times <FILE>", "--model"),
            ("--engine native", "--model <DIR>", "--times"),
            ("", "--model <DIR>", "--times"),
        ] {
            let error = checked(flags).expect_err("incomplete").to_string();
            let (what, _usage) = error.split_once("Usage").expect("clap shows the usage");
            assert!(
                what.contains(asked) && !what.contains(other),
                "{flags}: {error}"
            );
        }
    }

    #[test]
    fn an_engine_takes_its_own_flags_a33() {
        for (flags, engine) in [
            ("--model m", Engine::Native),
            ("--engine native --model m --device cpu", Engine::Native),
            ("--check-model m", Engine::Native),
            ("--engine native --check-model m", Engine::Native),
            ("--engine replay --times t", Engine::Replay),
            (
                "--engine replay --times t --time-scale 0.5 --faults f",
                Engine::Replay,
            ),
        ] {
            assert_eq!(parsed(flags).map(|args| args.engine), Ok(engine), "{flags}");
        }
        let args = parsed("--engine replay --times t").expect("allowed");
        assert_eq!(args.replay.times_file(), Path::new("t"));
        assert_eq!((args.replay.time_scale, args.replay.faults), (1.0, None));
    }

    #[test]
    fn an_engine_refuses_the_flags_of_another() {
        use ErrorKind::{ArgumentConflict, MissingRequiredArgument, ValueValidation};
        for (flags, kind) in [
            ("", MissingRequiredArgument),
            ("--engine native", MissingRequiredArgument),
            ("--engine replay", MissingRequiredArgument),
            ("--engine replay --faults f", MissingRequiredArgument),
            ("--times t", MissingRequiredArgument),
            ("--engine native --times t", ArgumentConflict),
            ("--engine native --model m --times t", ArgumentConflict),
            ("--model m --times t", ArgumentConflict),
            ("--model m --faults f", MissingRequiredArgument),
            ("--model m --time-scale 2", MissingRequiredArgument),
            ("--engine replay --times t --model m", ArgumentConflict),
            ("--engine replay --times t --device cpu", ArgumentConflict),
            (
                "--engine replay --times t --check-model m",
                ArgumentConflict,
            ),
            ("--engine replay --times t --time-scale 0", ValueValidation),
            ("--engine replay --times t --time-scale=-1", ValueValidation),
            (
                "--engine replay --times t --time-scale inf",
                ValueValidation,
            ),
            (
                "--engine replay --times t --time-scale NaN",
                ValueValidation,
            ),
        ] {
            assert_eq!(parsed(flags).map(|args| args.engine), Err(kind), "{flags}");
        }
    }
}
