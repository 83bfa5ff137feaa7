//! Values of flags that an error does not repeat: a URL may hold a password, and what is wrong with it may be just that.

use std::{error::Error, ffi::OsStr, marker::PhantomData, str::FromStr};

use clap::{
    Arg, Command,
    builder::{StringValueParser, TypedValueParser},
    error::{ContextKind, ContextValue},
};

/// What clap shows in place of the value.
const INSTEAD: &str = "(not shown)";

/// Reads a flag as `T` does, and says what is wrong with a value without the value.
#[derive(Debug)]
pub struct Unshown<T>(PhantomData<fn() -> T>);

/// The `value_parser` of a flag that may hold a secret.
pub const fn unshown<T>() -> Unshown<T> {
    Unshown(PhantomData)
}

impl<T> Clone for Unshown<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Unshown<T> {}

impl<T> TypedValueParser for Unshown<T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let plain = StringValueParser::new().try_map(|text| text.parse::<T>());
        plain.parse_ref(command, arg, value).map_err(|mut error| {
            let instead = ContextValue::String(INSTEAD.to_owned());
            error.insert(ContextKind::InvalidValue, instead);
            error
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[arg(long, value_delimiter = ',', value_parser = unshown::<u16>())]
        secrets: Vec<u16>,
    }

    #[test]
    fn a_refusal_names_the_flag_and_the_reason_and_not_the_value() {
        let parse = |flag: &str| Flags::try_parse_from(["program", flag]);
        assert_eq!(parse("--secrets=1,2").unwrap().secrets, [1, 2]);
        let shown = parse("--secrets=1,99999").unwrap_err().to_string();
        for part in ["--secrets", INSTEAD, "too large"] {
            assert!(shown.contains(part), "no {part} in {shown}");
        }
        assert!(!shown.contains("99999"), "{shown}");
    }
}
