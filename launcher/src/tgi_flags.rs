//! TGI's flags and environment variables that Penstock does not have. Whoever moves over from TGI learns
//! of each one they use: what would change answers or security stops the launcher, the rest is a warning.
//! Called by `flags` only. A flag that Penstock learns leaves this table.

use clap::builder::OsStr;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// What becomes of a flag that is given.
enum FlagSupport {
    /// Ignoring it would hurt; the text says what to do without it.
    NotYet(&'static str),
    /// Nothing is lost without it; the text says why.
    NoEffect(&'static str),
}

struct Flag {
    /// The environment variable is its upper-snake form.
    name: &'static str,
    /// Values that ask for nothing.
    neutral: &'static [&'static str],
    support: FlagSupport,
}

const OFF: &[&str] = &["", "0", "false"];
const EMPTY: &[&str] = &[""];

const AS_CONFIGURED: &str = "take it out; what the model's config.json says of rotary embeddings is followed";
const NO_TUNNEL: &str = "take it out; a tunnel is a program of its own";

const fn not_yet(name: &'static str, neutral: &'static [&'static str], instead: &'static str) -> Flag {
    Flag { name, neutral, support: FlagSupport::NotYet(instead) }
}

const fn no_effect(name: &'static str, why: &'static str) -> Flag {
    Flag { name, neutral: EMPTY, support: FlagSupport::NoEffect(why) }
}

const FLAGS: &[Flag] = &[
    not_yet("rope-scaling", EMPTY, AS_CONFIGURED),
    not_yet("rope-factor", EMPTY, AS_CONFIGURED),
    not_yet("ngrok", OFF, NO_TUNNEL),
    not_yet("ngrok-authtoken", EMPTY, NO_TUNNEL),
    not_yet("ngrok-edge", EMPTY, NO_TUNNEL),
    Flag {
        name: "disable-custom-kernels",
        neutral: OFF,
        support: FlagSupport::NoEffect("Penstock chooses its kernels by itself"),
    },
    Flag {
        name: "enable-prefill-logprobs",
        neutral: OFF,
        support: FlagSupport::NoEffect("`decoder_input_details` works without it"),
    },
    no_effect("waiting-served-ratio", "prompts are computed beside running requests, without waiting"),
    no_effect("max-waiting-tokens", "prompts are computed beside running requests, without waiting"),
    no_effect("cuda-graphs", "Penstock decides by itself what it records"),
    no_effect("prometheus-port", "metrics are at /metrics on --port"),
    no_effect("shard-uds-path", "sockets are made in a private folder"),
    Flag {
        name: "usage-stats",
        neutral: &["", "off"],
        support: FlagSupport::NoEffect("Penstock sends no usage statistics"),
    },
];

/// Adds them to the command line, unseen in its help.
pub fn declare(command: Command) -> Command {
    command.args(FLAGS.iter().map(|flag| {
        Arg::new(flag.name)
            .long(flag.name)
            // clap keeps borrowed names only; this runs once.
            .env(OsStr::from(&*variable(flag.name).leak()))
            .hide(true)
            .hide_env_values(true)
            .action(ArgAction::Append)
            .num_args(0..=1)
            .default_missing_value("true")
    }))
}

/// A line for each flag given that has no effect, or the line that stops the launcher. Values are never
/// repeated: some are secrets.
pub fn check(matches: &ArgMatches) -> Result<Vec<String>, String> {
    let mut warnings = Vec::new();
    for flag in FLAGS {
        let given = matches.get_many::<String>(flag.name).is_some_and(|mut values| {
            values.any(|value| !flag.neutral.contains(&value.to_lowercase().as_str()))
        });
        if !given {
            continue;
        }
        let from_environment =
            matches.value_source(flag.name) == Some(clap::parser::ValueSource::EnvVariable);
        let name = if from_environment { variable(flag.name) } else { format!("--{}", flag.name) };
        match flag.support {
            FlagSupport::NotYet(instead) => return Err(format!("{name} is not supported yet: {instead}")),
            FlagSupport::NoEffect(why) => warnings.push(format!("{name} has no effect: {why}")),
        }
    }
    Ok(warnings)
}

fn variable(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(arguments: &[&str]) -> Result<Vec<String>, String> {
        check(&declare(Command::new("penstock")).get_matches_from([&["penstock"], arguments].concat()))
    }

    #[test]
    fn what_would_hurt_if_ignored_stops_the_launcher_without_its_value() {
        let line = checked(&["--ngrok-authtoken", "sesame"]).unwrap_err();
        assert!(line.starts_with("--ngrok-authtoken is not supported yet: "), "{line}");
        assert!(!line.contains("sesame"), "{line}");
        assert!(checked(&["--ngrok"]).is_err());
    }

    #[test]
    fn what_is_harmless_is_one_warning_each() {
        let warnings =
            checked(&["--cuda-graphs", "1,2", "--disable-custom-kernels", "--usage-stats", "on"]).unwrap();
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings.iter().any(|line| line.starts_with("--disable-custom-kernels has no effect")));
    }

    #[test]
    fn when_prompts_interrupt_decodes_is_nothing_to_choose_here() {
        let warnings = checked(&["--max-waiting-tokens", "20", "--waiting-served-ratio=0.3"]).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        for line in warnings {
            assert!(
                line.ends_with("prompts are computed beside running requests, without waiting"),
                "{line}"
            );
        }
    }

    #[test]
    fn a_value_that_asks_for_nothing_passes_in_silence() {
        assert_eq!(checked(&["--rope-factor", "", "--disable-custom-kernels", "False"]), Ok(vec![]));
    }
}
